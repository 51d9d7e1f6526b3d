"""``quirks migrate`` and ``quirks parity compare`` on the command line, with dumps that no engine made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker.lab.compare.compare import Comparison
from worker.lab.compare.dump import Dump, Row

EFFECTIVE = {"model_config.logprobs_mode": "processed_logprobs", "cache_config.block_size": 16}
RAW = {**EFFECTIVE, "model_config.logprobs_mode": "raw_logprobs", "acme.new": 1}


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[..., Path]:
    """Writes a dump of one greedy and one sampled row."""

    def write(name: str, logprob: float = -1.0, **fields: Any) -> Path:
        values: dict[str, Any] = {
            "date": "2026-11-21", "model": "tiny[b]", "model_type": "qwen3", "config_digest": "c", "platform": "cpu",
            "versions": {"vllm": "0.30.0"}, "plan": "p", "quirks": (), "receipt": {"digest": "p", "processes": ()},
            "settings": {"sampling.temperature": 0.7},
            "effective": EFFECTIVE, "prompts": ((1, 2),),
            "rows": (
                Row(kind="greedy", prompt=0, tokens=(3, 4), logprobs=(-1, -1)),
                Row(kind="sampled", prompt=0, seed=0, tokens=(3, 5), logprobs=(logprob, logprob)),
            ),
        }  # fmt: skip
        dump = Dump(**{**values, **fields})
        dump = dump.model_copy(update={"scored": {dump.digest: ((-1.0, -1.0), (-1.0, -1.0))}})
        dump.write(tmp_path / name)
        return tmp_path / name

    return write


def test_json_is_the_comparison_alone(quirks, dumped):
    outcome = quirks("parity", "compare", dumped("A.json"), dumped("B.json", effective=RAW), "--json")

    found = Comparison.model_validate(outcome.json)
    assert outcome.code == 0
    assert [cause.name for cause in found.causes] == ["model_config.logprobs_mode"]


def test_limits_of_the_user_decide_on_the_exit_code(quirks, dumped):
    wide = ("mean_abs_delta=1", "mean_exp_abs_delta<=2", "mean_abs_dprob=1", "kl_k1=1", "kl_k3=1")
    options = [word for text in wide for word in ("--threshold", text)]

    a, b = dumped("A.json"), dumped("B.json", -1.5)
    assert (quirks("parity", "compare", a, b).code, quirks("parity", "compare", a, b, *options).code) == (1, 0)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_comparison_takes_two_dumps(quirks, dumped, number):
    outcome = quirks("parity", "compare", *[dumped("A.json")] * number)

    assert outcome.code == 2
    assert "takes two dumps" in outcome.err


# ---- before anything runs


@pytest.fixture
def migrate(model, tmp_path):
    """Arguments of ``quirks migrate`` that tests share."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [1, 2]}\n')
    return ["migrate", "--to", sys.executable, "--prompts", str(prompts), "--model", str(model(vocab_size=8))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "no/python"], "'no/python' is no Python interpreter"),
        (["--from", "0.30"], "'0.30' is no Python interpreter"),
        (["--from", "0.30", "--profile", "float23"], "did you mean 'float32'"),
        (["--from", "0.30", "--threshold", "max_abs_delta=high"], "the limit must be a finite number"),
        (["--from", "0.30", "--prompts", "no/file"], "prompts no/file cannot be read"),
        (["--from", "0.30", "--assume", "vllm==0.30.0"], "name them with --from and --to"),
        (["--from", "0.30", "--set", "train.dtpye=float32"], "did you mean 'dtype'"),
        (["--from", "0.30", "--output", "/dev/null/folder"], "--output /dev/null/folder cannot be made"),
    ],
)
def test_a_usage_error_comes_before_anything_runs(quirks, migrate, arguments, message):
    outcome = quirks(*migrate, *arguments, "--json")

    assert outcome.code == 2
    assert message in outcome.json["error"]


def test_texts_without_a_tokenizer_are_refused_before_an_engine_starts(quirks, model):
    outcome = quirks("migrate", "--from", "no/python", "--to", sys.executable, "--model", model(vocab_size=1000))

    assert (outcome.code, "texts need a tokenizer" in outcome.err) == (2, True)
