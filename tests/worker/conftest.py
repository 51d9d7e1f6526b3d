"""What the worker's tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker import GenerationConfig


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model folder with a ``config.json`` and nothing else."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}), encoding="utf-8")
    return folder


@pytest.fixture
def parse() -> Callable[..., GenerationConfig]:
    """Checks a configuration whose model does not matter."""

    def parse(**values: Any) -> GenerationConfig:
        return GenerationConfig.parse({"model": "some/model", **values})

    return parse
