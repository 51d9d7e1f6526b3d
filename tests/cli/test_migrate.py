"""``quirks parity compare``, which ends ``quirks migrate``, on dumps that no engine made."""

from __future__ import annotations

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
