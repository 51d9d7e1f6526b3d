"""Programs that tests start: what they inherit, and what they leave behind."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

_THEIRS = ("ACME_", "HF_", "MODEL_QUIRKS", "NCCL_", "NRL_", "PIP_", "PYTEST_", "PYTHON", "VLLM_")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


def inherited() -> dict[str, str]:
    """Returns an environment with a wide terminal without colours, and nothing that the developer has set for our tools."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_THEIRS)}
    return {**kept, "COLUMNS": "300", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb"}
