"""What the worker's tests share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


@pytest.fixture
def background():
    """Runs something in a thread; a test that leaves one running fails by its time limit."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


@pytest.fixture
def start():
    """Starts a Python program; ends it after the test."""
    started = []

    def run(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for child in started:
        child.kill()
        child.communicate()
