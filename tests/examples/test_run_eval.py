"""The evaluation example: its arithmetic, and the whole run as a user starts it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from programs import run_python
from script_modules import load_script
from transformers import AutoModelForCausalLM, AutoTokenizer

from worker.batch import prompts, sample

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples"


@pytest.fixture(scope="module")
def evaluation() -> Iterator[ModuleType]:
    """The script as a module, which imports its neighbours."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(_EXAMPLES))
    yield load_script(_EXAMPLES / "run_eval.py")
    patch.undo()


# ---- scores


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(evaluation, samples):
    for correct in range(samples + 1):
        for k in range(1, samples + 1):
            choices = list(combinations([True] * correct + [False] * (samples - correct), k))
            share = sum(any(choice) for choice in choices) / len(choices)

            assert evaluation.pass_at_k(samples, correct, k) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "pattern", "answer"),
    [
        (" 7\n", None, "7"),
        ("so 3 and 4 make 7.", r"-?\d+", "7"),
        (r"first \boxed{3}, then \boxed{ 7 }", r"\\boxed\{([^}]*)\}", "7"),
        ("I do not know", r"-?\d+", None),
        ("b", r"(a)|b", None),
    ],
)
def test_the_last_match_is_the_answer(evaluation, text, pattern, answer):
    assert evaluation.extracted(text, pattern) == answer


# ---- the tiny model


def _pairs() -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in (_EXAMPLES / "data/arithmetic.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(f"{row['question']}=", row["answer"]) for row in rows]


@pytest.fixture(scope="module")
def tiny(evaluation: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the shipped configuration stands for."""
    folder, threads = tmp_path_factory.mktemp("tiny"), torch.get_num_threads()
    torch.set_num_threads(1)  # as the script does; sums differ in the last bit otherwise
    try:
        evaluation.make_tiny(evaluation.KINDS["tiny"], folder, _pairs(), 0)
    finally:
        torch.set_num_threads(threads)
    return folder


def _right(folder: Path) -> torch.Tensor:
    """Probability of the right answer to each question, [B], from one pass over the saved model."""
    from tiny_model import lesson

    ids, taught = lesson(_pairs(), AutoTokenizer.from_pretrained(folder))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits[:, :-1]
    return (logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None])[..., 0] * taught).sum(dim=1).exp()


# ---- the order of requests


class _Group:
    """Stands in for a `worker.WorkerGroup`: only a fake answers in a chosen order."""

    async def generate_async(self, data: dict[str, Any]) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        rows = prompts(data)
        for index in reversed(range(len(rows))):  # the first token of a prompt is the question's number
            yield index, sample(rows[index], [40 + rows[index][0]], [0.0], truncated=index == 0)


class _Letters:
    """A tokenizer whose ids are characters."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(map(chr, ids))


@pytest.mark.parametrize("generation", ["async", "sync"])
async def test_responses_come_back_to_their_prompts_in_any_order(evaluation, monkeypatch, generation):
    monkeypatch.chdir(_ROOT)
    settings = (f"eval.generation={generation}", "eval.batch_size=4", "eval.k=1", "eval.num_tests_per_prompt=3")
    config = evaluation.EvalConfig.load(_EXAMPLES / "eval.yaml", settings=settings).eval
    questions = [evaluation.Question(index + 1, "p", chr(40 + index)) for index in range(6)]
    rows = [[index, *range(index)] for index in range(6)]  # of different lengths, so padding must not get into a text

    answered = await evaluation.Evaluation(_Group(), _Letters(), config, questions, rows, lambda: None).run()

    assert [item.question.line for item in answered] == [1, 2, 3, 4, 5, 6]
    assert [item.texts for item in answered] == [[chr(40 + index)] * 3 for index in range(6)]
    assert all(item.correct == [True] * 3 for item in answered)
    assert answered[0].truncated == [True, False, False]


# ---- the command


@pytest.mark.usefixtures("worker_in_core")
@pytest.mark.engine
def test_an_evaluation_finds_what_the_model_was_taught(tiny, tmp_path):
    output = tmp_path / "results.json"

    options = ("--config", "examples/eval.yaml", "--json", "--output", output)
    done = run_python("examples/run_eval.py", *options, cwd=_ROOT, COLUMNS="120")

    assert done.returncode == 0, done.stderr
    summary, found = json.loads(done.stdout), json.loads(output.read_text(encoding="utf-8"))
    assert found["summary"] == summary
    assert summary["model_name"] == "tiny"
    assert summary["dataset_name"] == "arithmetic"
    sampling = {"max_new_tokens": 4, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 0}
    assert {name: summary[name] for name in sampling} == sampling
    assert (summary["metric"], summary["num_tests_per_prompt"], summary["prompts"]) == ("pass@k", 16, 100)
    right = _right(tiny)
    for k in (1, 2, 4, 8):
        # 1600 samples: the standard error of pass@1 is about 0.01, those of the others are like it.
        known = float((1 - (1 - right) ** k).mean())
        assert summary["score"][f"pass@{k}"] == pytest.approx(known, abs=0.06)
    assert 0 < summary["score"]["pass@1"] < summary["score"]["pass@8"] < 1
    rows = found["prompts"]
    assert [row["line"] for row in rows] == list(range(1, 101))
    assert {len(row[name]) for row in rows for name in ("texts", "answers", "correct", "truncated")} == {16}
    assert all(row["correct"] == [text.strip() == row["answer"] for text in row["texts"]] for row in rows)
    assert summary["score"]["pass@1"] == pytest.approx(sum(sum(row["correct"]) for row in rows) / 1600)
    assert "1600/1600" in done.stderr
    assert "error" not in done.stderr.lower()
