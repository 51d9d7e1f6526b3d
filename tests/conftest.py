"""What all tests share: a temporary folder for each process of a parallel run, and engines first."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

_ENGINES = Path(__file__).parent / "engine"


def pytest_configure(config: pytest.Config) -> None:
    """Some tests look for what is left behind, and must not see what the other process is at."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        folder = tempfile.mkdtemp(prefix=f"{worker}-", dir="/tmp" if Path("/tmp").is_dir() else None)  # noqa: S108 - sockets need short paths
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that no process of a parallel run is left alone with it."""
    items.sort(key=lambda item: _ENGINES not in item.path.parents)
