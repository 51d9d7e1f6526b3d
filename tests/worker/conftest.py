"""What the worker's tests share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quirks_core import ModelFlag, Quirk, Severity, purpose, report
from quirks_core.reporting.terminal import Screen


@pytest.fixture
def declare() -> Callable[..., Quirk]:
    """Declares a quirk of every rollout, unless it says otherwise."""

    def build(name: str, *adjustments: Any, **fields: Any) -> Quirk:
        given = {"title": "-", "match": purpose("rollout"), "flag": ModelFlag.RUNTIME, "severity": Severity.WRONG_OUTPUT}
        return Quirk(id=name, adjustments=adjustments, references=report("https://example.org"), **given | fields)

    return build


@pytest.fixture
def screened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns what a terminal of a given width gets from a function that writes to a screen; a pipe for a width of None."""

    def show(write: Callable[[Screen], None], *, width: int | None = 80, colours: bool = False) -> str:
        with monkeypatch.context() as environment:
            for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
                environment.delenv(name, raising=False)
            if width is not None:
                environment.setenv("COLUMNS", str(width))
            if colours:
                environment.setenv("FORCE_COLOR", "1")
                environment.setenv("TERM", "xterm-256color")
            capsys.readouterr()
            write(Screen())
        return capsys.readouterr().out

    return show


@pytest.fixture
def mesh(tmp_path):
    """One rank that is all of a trainer."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def address(tmp_path_factory):
    """Where a socket may be; pytest's own folders can be too deep for one."""
    return tmp_path_factory.mktemp("s") / "rank-0.sock"


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
