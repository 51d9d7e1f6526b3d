"""The evaluation example: its arithmetic, its errors, and the whole run as a user starts it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from patience import HUNG_S
from script_modules import load_script
from transformers import AutoModelForCausalLM, AutoTokenizer

from quirks_core.base.errors import UsageError
from worker.batch import prompts, sample

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples"
_CONFIG = _EXAMPLES / "eval.yaml"


@pytest.fixture(scope="module")
def evaluation() -> Iterator[ModuleType]:
    """The script as a module, which imports its neighbours."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(_EXAMPLES))
    yield load_script(_EXAMPLES / "run_eval.py")
    patch.undo()


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, evaluation: ModuleType) -> Any:
    """The shipped configuration with its dataset; values can be laid over it."""
    monkeypatch.chdir(_ROOT)
    return lambda *settings: evaluation.EvalConfig.load(_CONFIG, settings=settings)


def _dataset(folder: Path, *lines: str) -> str:
    file = folder / "data.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return f"eval.dataset={file}"


# ---- scores


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_right_one(evaluation, samples):
    for correct in range(samples + 1):
        for k in range(1, samples + 1):
            choices = list(combinations([True] * correct + [False] * (samples - correct), k))
            share = sum(any(choice) for choice in choices) / len(choices)

            assert evaluation.pass_at_k(samples, correct, k) == pytest.approx(share, abs=1e-12)


def test_many_samples_neither_overflow_nor_lose_a_small_probability(evaluation):
    assert evaluation.pass_at_k(100_000, 1, 1) == pytest.approx(1e-5, rel=1e-9)
    assert evaluation.pass_at_k(10_000, 5_000, 5_000) == 1.0
    assert evaluation.pass_at_k(10_000, 0, 10_000) == 0.0


def test_the_score_is_the_mean_over_prompts_not_over_samples(evaluation):
    question = evaluation.Question(1, "p", "a")
    rows = [evaluation.Answered(question, [], [], correct, []) for correct in ([True, True], [True, False], [False, False])]

    assert evaluation.scores(rows, (1, 2)) == {"pass@1": 0.5, "pass@2": pytest.approx(2 / 3)}


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


# ---- the dataset


def test_every_answer_of_the_shipped_dataset_is_the_sum(evaluation, shipped):
    questions = evaluation.read_dataset(shipped().eval)

    assert len({question.prompt for question in questions}) == 100
    for question in questions:
        left, right = question.prompt.removesuffix("=").split("+")
        assert question.answer == str(int(left) + int(right))


def test_braces_that_name_no_field_stay_in_the_prompt(evaluation, shipped, tmp_path):
    data = _dataset(tmp_path, '{"a": "x", "n": 2, "answer": 1.5}', "", '{"a": "{n}", "n": 3, "answer": " y "}')

    config = shipped(data, r"eval.prompt='{a}{n} in \boxed{} or {a b}'")

    assert evaluation.read_dataset(config.eval) == [
        evaluation.Question(1, r"x2 in \boxed{} or {a b}", "1.5"),
        evaluation.Question(3, r"{n}3 in \boxed{} or {a b}", "y"),  # a field's own braces are text
    ]


def test_every_wrong_line_of_the_data_is_reported_with_its_place(evaluation, shipped, tmp_path):
    good = '{"question": "1+1", "answer": "2"}'
    wrong = ['{"question": "1+1",', "[1]", '{"questoin": "1+1", "answer": "2"}', '{"question": "1+1", "answer": null}']
    config = shipped(_dataset(tmp_path, good, *wrong))

    with pytest.raises(UsageError) as caught:
        evaluation.read_dataset(config.eval)

    message = str(caught.value)
    assert "data.jsonl:1:" not in message
    assert "data.jsonl:2: not valid JSON" in message
    assert "data.jsonl:3: a JSON object is needed, not list" in message
    assert "data.jsonl:4: no field 'question'; did you mean 'questoin'?" in message
    assert "data.jsonl:5: field 'answer' must be a text or a number, not null" in message


def test_a_wholly_wrong_dataset_does_not_fill_the_screen(evaluation, shipped, tmp_path):
    config = shipped(_dataset(tmp_path, *["no JSON"] * 500))

    with pytest.raises(UsageError, match="and 490 more") as caught:
        evaluation.read_dataset(config.eval)

    assert len(str(caught.value).splitlines()) == 12


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_a_dataset_that_is_missing_empty_or_no_text_is_a_usage_error(evaluation, shipped, tmp_path, content):
    file = tmp_path / "data.jsonl"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(UsageError, match=r"eval\.dataset: .*data\.jsonl"):
        evaluation.read_dataset(shipped(f"eval.dataset={file}").eval)


# ---- the configuration


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("eval.k=[1, 32]", "eval: k = 32 is more than num_tests_per_prompt = 16"),
        ("eval.k=0", "k must be at least 1"),
        ("eval.k=[]", "eval.k: "),
        ("eval.metric=pass", "eval.metric: Input should be 'pass@k', not 'pass'"),
        ("eval.num_test_per_prompt=4", "eval.num_test_per_prompt: unknown key; did you mean 'num_tests_per_prompt'?"),
        ("evaluation.k=1", "evaluation: unknown key; did you mean 'eval'?"),
        ("eval.generation=asynchronous", "eval.generation: Input should be 'async' or 'sync', not 'asynchronous'"),
        ("eval.answer_pattern='('", "eval.answer_pattern: '(' is no regular expression"),
        ("engine.seed=3", "engine.seed = 3 but eval.seed = 0"),
        ("purpose=rollout", "purpose: Input should be 'eval', not 'rollout'"),
        ("sampling.temprature=1", "sampling.temprature: unknown key; did you mean 'temperature'?"),
    ],
)
def test_what_is_wrong_with_the_configuration_is_known_from_key(shipped, setting, message):
    with pytest.raises(UsageError) as caught:
        shipped(setting)

    assert message in str(caught.value)


def test_the_engines_get_only_their_part_of_the_configuration(shipped):
    config = shipped("eval.seed=7", "model={path: tiny, tokenizer: t}")

    engines = config.for_engines("/models/one")

    assert not hasattr(engines, "eval")
    assert (engines.model.path, engines.model.tokenizer, engines.engine.seed, engines.purpose) == (
        "/models/one",
        "t",
        7,
        "eval",
    )
    assert engines.typed_slots() - config.typed_slots() == {"engine.seed"}
    assert config.typed_slots() <= engines.typed_slots()
    assert engines.env == config.env


@pytest.mark.parametrize("setting", ["sampling.temperature=0", "sampling.top_k=1"])
def test_samples_that_must_be_equal_are_warned_of(shipped, setting):
    assert setting.partition("=")[0] in shipped(setting).notes()[0]
    assert not shipped(setting, "eval.num_tests_per_prompt=1", "eval.k=1").notes()
    assert not shipped().notes()


# ---- the tiny model


@pytest.fixture(scope="module")
def tiny(evaluation: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The model that the shipped configuration stands for, and the mean probability of a right answer."""
    folder = tmp_path_factory.mktemp("tiny")
    return folder, _make(evaluation, "tiny", folder)


def _pairs() -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in (_EXAMPLES / "data/arithmetic.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(f"{row['question']}=", row["answer"]) for row in rows]


def _make(evaluation: ModuleType, name: str, folder: Path) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the script does; sums differ in the last bit otherwise
    try:
        return float(evaluation.make_tiny(evaluation.KINDS[name], folder, _pairs(), 0))
    finally:
        torch.set_num_threads(threads)


def test_the_same_seed_makes_the_same_tiny_model(evaluation, tiny, tmp_path):
    folder, right = tiny

    assert _make(evaluation, "tiny", tmp_path) == right
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_a_tiny_model_is_saved_while_it_knows_half(evaluation, tmp_path, name):
    claimed = _make(evaluation, name, tmp_path)

    assert 0.5 <= claimed < 0.7
    assert float(_right(tmp_path).mean()) == pytest.approx(claimed, abs=1e-4)


def _right(folder: Path) -> torch.Tensor:
    """Probability of the right answer to each question, [B], from one pass over the saved model."""
    from tiny_model import lesson

    ids, taught = lesson(_pairs(), AutoTokenizer.from_pretrained(folder))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits[:, :-1]
    return (logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None])[..., 0] * taught).sum(dim=1).exp()


def test_a_prompt_without_room_is_known_from_its_line_before_any_engine_starts(evaluation, shipped, tiny, tmp_path):
    config = shipped(_dataset(tmp_path, "", json.dumps({"question": "1+" * 50, "answer": "2"})))

    with pytest.raises(UsageError, match=r"data\.jsonl:2: the prompt has 101 tokens.*engine\.max_model_len = 32"):
        evaluation.encode(evaluation.read_dataset(config.eval), AutoTokenizer.from_pretrained(tiny[0]), config)


def test_a_chat_template_makes_each_prompt_a_users_message(evaluation, shipped, tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny[0])
    questions = [evaluation.Question(1, "1+2=", "3")]

    plain = evaluation.encode(questions, tokenizer, shipped())
    chat = evaluation.encode(questions, tokenizer, shipped("eval.chat=true"))
    tokenizer.chat_template = None

    assert [tokenizer.decode(row) for row in plain + chat] == ["1+2=", "user: 1+2=\nassistant: "]
    with pytest.raises(UsageError, match="no chat template"):
        evaluation.encode(questions, tokenizer, shipped("eval.chat=true"))


# ---- the order of requests


class _Group:
    """Stands in for a `worker.WorkerGroup`: only a fake can hold a response back, or fail, at a chosen moment."""

    def __init__(self, slow: int | None = None, bad: int | None = None) -> None:
        self.slow, self.bad = slow, bad
        self.sent: list[set[int]] = []  # the first token of a prompt is the question's number
        self.under_way, self.most, self.ended = 0, 0, 0
        self.go_on = asyncio.Event()

    async def generate_async(self, data: dict[str, Any]) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        rows = prompts(data)
        names = {row[0] for row in rows}
        self.sent.append(names)
        self.under_way += len(names)
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            if self.bad in names:
                raise UsageError("a rank died")
            if self.slow in names:
                await self.go_on.wait()
            for index in reversed(range(len(rows))):
                yield index, sample(rows[index], [40 + rows[index][0]], [0.0], truncated=index == 0)
        finally:
            self.under_way -= len(names)
            self.ended += 1


class _Letters:
    """A tokenizer whose ids are characters."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(map(chr, ids))


def _asked(evaluation: ModuleType, config: Any, group: _Group, count: int = 6) -> Any:
    questions = [evaluation.Question(index + 1, "p", chr(40 + index)) for index in range(count)]
    rows = [[index, *range(index)] for index in range(count)]  # of different lengths, so padding must not get into a text
    return evaluation.Evaluation(group, _Letters(), config, questions, rows, lambda: None)


@pytest.mark.parametrize("generation", ["async", "sync"])
async def test_responses_come_back_to_their_prompts_whatever_the_order(evaluation, shipped, generation):
    config = shipped(f"eval.generation={generation}", "eval.batch_size=4", "eval.k=1", "eval.num_tests_per_prompt=3").eval

    answered = await _asked(evaluation, config, _Group()).run()

    assert [item.question.line for item in answered] == [1, 2, 3, 4, 5, 6]
    assert [item.texts for item in answered] == [[chr(40 + index)] * 3 for index in range(6)]
    assert all(item.correct == [True] * 3 for item in answered)
    assert answered[0].truncated == [True, False, False]


async def test_sync_starts_a_batch_when_the_one_before_is_finished(evaluation, shipped):
    group = _Group(slow=0)

    running = asyncio.ensure_future(_asked(evaluation, shipped("eval.generation=sync", "eval.batch_size=2").eval, group).run())
    for _ in range(50):
        await asyncio.sleep(0)
    held = list(group.sent)
    group.go_on.set()
    await running

    assert held == [{0, 1}]
    assert group.sent == [{0, 1}, {2, 3}, {4, 5}]


async def test_async_keeps_its_batch_full_beside_a_slow_prompt(evaluation, shipped):
    group = _Group(slow=0)

    running = asyncio.ensure_future(_asked(evaluation, shipped("eval.generation=async", "eval.batch_size=2").eval, group).run())
    for _ in range(50):
        await asyncio.sleep(0)
    held = list(group.sent)
    group.go_on.set()
    await running

    assert held == [{index} for index in range(6)]
    assert group.most == 2


@pytest.mark.parametrize("generation", ["async", "sync"])
async def test_an_error_of_one_prompt_ends_the_evaluation(evaluation, shipped, generation):
    group = _Group(slow=0, bad=1)

    with pytest.raises(UsageError, match="a rank died"):
        await _asked(evaluation, shipped(f"eval.generation={generation}").eval, group).run()

    assert group.under_way == 0


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "configuration nowhere.yaml cannot be read"),
        (["--config", str(_CONFIG), "--output", "nowhere/results.json"], "there is no folder nowhere"),
        (["--config", str(_CONFIG), "--set", "eval.k=99"], "k = 99 is more than num_tests_per_prompt"),
        (["--config", str(_CONFIG), "--set", "eval.dataset=nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--config", str(_CONFIG), "--model", "./nowhere"], "./nowhere"),
        ([], "--config"),
    ],
)
def test_what_was_typed_wrong_is_reported_with_code_2(evaluation, monkeypatch, capsys, tmp_path, arguments, message):
    (tmp_path / "examples").symlink_to(_EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *arguments])
    threads = torch.get_num_threads()

    try:
        code = evaluation.main()
    except SystemExit as stopped:  # argparse's way
        code = stopped.code
    finally:
        torch.set_num_threads(threads)

    assert code == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["examples"]


@pytest.mark.usefixtures("worker_in_core")
@pytest.mark.engine
def test_an_evaluation_finds_what_the_model_was_taught(tiny, tmp_path):
    output = tmp_path / "results.json"

    done = subprocess.run(
        [sys.executable, "examples/run_eval.py", "--config", "examples/eval.yaml", "--json", "--output", str(output)],
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
        cwd=_ROOT,
        env={**os.environ, "COLUMNS": "120"},
    )

    assert done.returncode == 0, done.stderr
    summary, found = json.loads(done.stdout), json.loads(output.read_text(encoding="utf-8"))
    assert found["summary"] == summary
    assert summary["model_name"] == "tiny"
    assert summary["dataset_name"] == "arithmetic"
    sampling = {"max_new_tokens": 4, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 0}
    assert {name: summary[name] for name in sampling} == sampling
    assert (summary["metric"], summary["num_tests_per_prompt"], summary["prompts"]) == ("pass@k", 16, 100)
    right = _right(tiny[0])
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
