"""Runs scripts of TRL on a tiny checkpoint, as their users do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_programs
import pytest
from patience import HUNG_S
from programs import free_port

from worker.lab.kit import checkpoints

_SCRIPT = Path(__file__).parents[2] / "examples" / "trl_grpo.py"


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
    """Runs a script on a tiny float32 checkpoint; nothing of the developer's environment leaks in."""
    folder = tmp_path_factory.mktemp("trl")
    model = checkpoints.build("qwen3", folder / "qwen3")

    def run(name: str, *arguments: str, script: Path = _SCRIPT, **variables: str) -> Ended:
        log, receipt = folder / f"{name}.json", folder / f"{name}-receipt.json"
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("MODEL_QUIRKS", "VLLM_", "TORCHDYNAMO"))}
        small = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        small["MASTER_PORT"] = str(free_port())  # TRL takes 29500 if it is free, and so do two runs at once
        small["VLLM_CPU_CI_ENV"] = "1"  # models are traced as ever, but not compiled to machine code
        environment = {**kept, **small, "MODEL_QUIRKS_RECEIPT": str(receipt), **variables}
        command = [sys.executable, *map(str, (script, model, log)), *arguments]
        ended = forked_programs.run(command, env=environment, cwd=folder, timeout=HUNG_S)
        return Ended(ended.returncode, ended.stdout, log, receipt)

    return run
