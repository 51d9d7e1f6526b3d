"""TRL's GRPO with vLLM in colocate mode: an ordinary script, with MODEL_QUIRKS=on and without."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import HUNG_S

from quirks_core.facts.packages import cpu_features
from worker.lab.kit import checkpoints

_SCRIPT = Path(__file__).parents[2] / "examples" / "trl_grpo.py"
#: In nats, mean over a step's tokens. In bfloat16, which vLLM makes of a float32 checkpoint by itself, it is 0.02 to 0.04.
_TOLERANCE = 1e-4

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs the extra 'integrations' (TRL is not installed)"),
]


@dataclass(frozen=True)
class Ended:
    """A run of the script that has ended."""

    code: int
    text: str
    log: Path
    receipt: Path

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What TRL logged at each step."""
        return [row for row in json.loads(self.log.read_text(encoding="utf-8")) if "loss" in row]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Runs the script on a tiny float32 checkpoint; nothing of the developer's environment leaks in."""
    folder = tmp_path_factory.mktemp("trl")
    model = checkpoints.build("qwen3", folder / "qwen3")

    def run(name: str, **variables: str) -> Ended:
        log, receipt = folder / f"{name}.json", folder / f"{name}-receipt.json"
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("MODEL_QUIRKS", "VLLM_", "TORCHDYNAMO"))}
        small = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        small["VLLM_CPU_CI_ENV"] = "1"  # models are traced as ever, but not compiled to machine code
        ended = subprocess.run(
            [sys.executable, str(_SCRIPT), str(model), str(log)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HUNG_S,
            check=False,
            cwd=folder,
            env={**kept, **small, "MODEL_QUIRKS_RECEIPT": str(receipt), **variables},
        )
        return Ended(ended.returncode, ended.stdout, log, receipt)

    return run


def test_with_quirks_the_engine_samples_from_the_policy_that_is_trained_at_every_step(train):
    ended = train("with", MODEL_QUIRKS="on", MODEL_QUIRKS_SET="train.dtype=float32")

    assert ended.code == 0, ended.text[-4000:]
    assert [row["step"] for row in ended.steps] == [1, 2, 3]
    assert max(row["sampling/sampling_logp_difference/mean"] for row in ended.steps) <= _TOLERANCE
    assert all(row["grad_norm"] > 0 for row in ended.steps[:2])  # so later steps had other weights to load
    (engine,) = json.loads(ended.receipt.read_text(encoding="utf-8"))["engines"]
    assert engine["changes"]["engine.dtype"] == "float32"
    patched = {effect["slot"].rpartition(":")[2] for process in engine["processes"] for effect in process["effects"]}
    assert "BaseModelLoader.load_model" in patched
    assert "purpose rollout (a sign of a trainer" in ended.text


def test_without_the_quirk_for_float32_checkpoints_the_engine_samples_from_another_policy(train):
    variables = {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_DISABLE": "float32-checkpoint-downcast"}
    variables["TORCHDYNAMO_DISABLE"] = "1"  # then a quirk makes the engine eager, which halves the time

    ended = train("downcast", **variables)

    assert ended.code == 0, ended.text[-4000:]
    assert min(row["sampling/sampling_logp_difference/mean"] for row in ended.steps) > 100 * _TOLERANCE


def test_without_quirks_the_first_weight_update_fails_where_vllm_packs_bfloat16(train):
    ended = train("without")

    packs = "avx512" in (cpu_features() or ())  # what the quirk cpu-load-into-live-model matches on
    assert (ended.code != 0) == packs, ended.text[-4000:]
    assert ("AttributeError: 'Parameter' object has no attribute 'weight_loader'" in ended.text) == packs
    assert "model-quirks: " not in ended.text
    assert not ended.receipt.exists()
