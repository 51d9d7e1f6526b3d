"""``quirks migrate`` and the comparison of two dumps as a user types them. No engine runs: the dumps are made by hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quirks_core.cli import dumping
from quirks_core.errors import UsageError
from worker.parity.compare import Comparison
from worker.parity.dump import Dump, Row


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[..., Path]:
    """Writes a dump of one greedy and one sampled row."""

    def write(name: str, logprob: float = -1.0, **fields: Any) -> Path:
        values: dict[str, Any] = {
            "date": "2026-11-21", "model": "tiny[b]", "model_type": "qwen3", "config_digest": "c", "platform": "cpu",
            "versions": {"vllm": "0.30.0"}, "plan": "p", "quirks": (), "settings": {"sampling.temperature": 0.7},
            "effective": {"model_config.logprobs_mode": "processed_logprobs", "cache_config.block_size": 16},
            "prompts": ((1, 2),),
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


def compared(*files: Path, as_json: bool = False, threshold: tuple[str, ...] = ()) -> int:
    """Compares dumps as ``quirks parity compare`` does."""
    options = argparse.Namespace(profile="peers", threshold=list(threshold), json=as_json)
    return dumping.run_compare(options, [str(file) for file in files])


RAW = {"model_config.logprobs_mode": "raw_logprobs", "cache_config.block_size": 16, "acme.new": 1}


def test_equal_dumps_end_with_0_and_a_crossed_threshold_with_1(dumped: Callable[..., Path], capsys: Any) -> None:
    a, b = dumped("A.json"), dumped("B.json", -1.5)

    codes = (
        compared(a, a),
        compared(a, b),
        compared(a, b, threshold=("mean_abs_delta=1", "mean_exp_abs_delta<=2", "mean_abs_dprob=1", "kl_k1=1", "kl_k3=1")),
    )

    capsys.readouterr()
    assert codes == (0, 1, 0)


def test_a_person_sees_rows_the_limit_that_is_crossed_and_the_likely_cause(dumped: Callable[..., Path], capsys: Any) -> None:
    a, b = dumped("A.json"), dumped("B.json", -1.5, effective=RAW, versions={"vllm": "0.32.0"}, quirks=("v1-runtime",))

    compared(a, b)

    shown = capsys.readouterr().out
    for text in (
        "tiny[b]: A = vLLM 0.30.0 on cpu, B = vLLM 0.32.0 on cpu",
        "fail sampled: mean_abs_delta 0.500, limit 0.200",
        "settings that differ and can move tokens or logprobs",
        "model_config.logprobs_mode",
        "quirk rollout-logprobs-processed: in force in neither",
        "only B has 1: acme.new",
        "v1-runtime",
        "look at what a logprob means",
    ):
        assert text in shown


def test_json_is_the_comparison_and_nothing_else(dumped: Callable[..., Path], capsys: Any) -> None:
    compared(dumped("A.json"), dumped("B.json", effective=RAW), as_json=True)

    out = capsys.readouterr().out
    found = Comparison.model_validate_json(out)
    assert json.loads(out)["kinds"][0]["kind"] == "greedy"
    assert [cause.name for cause in found.causes] == ["model_config.logprobs_mode"]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_comparison_takes_two_dumps(dumped: Callable[..., Path], number: int) -> None:
    with pytest.raises(UsageError, match="takes two dumps"):
        compared(*[dumped("A.json")] * number)


# ---- what is said before anything runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "no/python"], "'no/python' is no Python interpreter"),
        (["--from", "0.8"], "worker runs vllm"),
        (["--profile", "float23"], "did you mean 'float32'"),
        (["--threshold", "max_abs_delta=high"], "the limit must be a finite number"),
        (["--prompts", "no/file"], "prompts no/file cannot be read"),
        (["--assume", "vllm==0.30.0"], "name them with --from and --to"),
        (["--set", "engine.dtpye=float32"], "did you mean"),
        (["--output", "/dev/null/folder"], "--output /dev/null/folder cannot be made"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(
    quirks: Callable[..., Any], model: Callable[..., Path], arguments: list[str], message: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [1, 2]}\n')
    here = ["--from", sys.executable, "--to", sys.executable, "--prompts", prompts, "--model", model(vocab_size=8)]

    outcome = quirks("migrate", *here, *arguments, "--json")

    assert outcome.code == 2
    assert message in outcome.json["error"]


def test_both_environments_must_be_named(quirks: Callable[..., Any]) -> None:
    outcome = quirks("migrate", "--model", "some/model", "--from", "0.30")

    assert outcome.code == 2
    assert "--to" in outcome.err


@pytest.mark.parametrize(
    ("option", "value"), [("--tokens", "0"), ("--samples", "two"), ("--timeout", "nan"), ("--timeout", "0")]
)
def test_numbers_that_make_no_sense_are_usage_errors(quirks: Callable[..., Any], option: str, value: str) -> None:
    outcome = quirks("migrate", "--from", "0.30", "--to", "0.32", option, value)

    assert outcome.code == 2
    assert option in outcome.err
