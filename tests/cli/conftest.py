"""What the tests of the command line share: it runs in this process, in an environment of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quirks_core.cli import main

_OURS = ("HF_", "MODEL_QUIRKS_", "NCCL_", "NRL_", "VLLM_")


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


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal without colours, and nothing of the developer's environment that could count."""
    for variable in [name for name in os.environ if name.startswith(_OURS)]:
        monkeypatch.delenv(variable)
    for variable, value in {"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(variable, value)


@pytest.fixture
def quirks(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs one command in this process."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model folder that holds a ``config.json`` and nothing else."""

    def make(model_type: str = "qwen3", **config: Any) -> Path:
        folder = tmp_path / model_type
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, **config}), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a third party's plugin: a module and the metadata that pip would write for it."""

    def install(name: str, source: str) -> None:
        site = tmp_path / "site"
        module = name.replace("-", "_").replace("/", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[model_quirks]\n{name} = {module}:QUIRK\n", encoding="utf-8")
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Mapping[str, str]]:
    """The environment of a command that runs in a process of its own."""

    def environment(**more: str) -> dict[str, str]:
        return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), **more}

    return environment
