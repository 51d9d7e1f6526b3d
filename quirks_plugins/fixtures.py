"""Fixtures with real engines for authors of quirks: tiny checkpoints, small engines, and what compares them.

pytest loads them on request, ``-p quirks_plugins.fixtures``, and they need model-quirks-lab. Nothing of the project is imported
before a test uses it: least of all our package `worker`, which would take the place of a trainer's own ``worker.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker
    from worker.lab.kit.lab import Lab


@pytest.fixture(scope="session")
def quirk_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Tiny checkpoints, small real engines, transformers as the reference, and comparers: `worker.lab.kit.lab.Lab`."""
    from quirks_core.facts.installation import check_ours

    check_ours("worker.lab")
    from worker.lab.kit.lab import Lab, set_environment

    before = set(os.environ)
    set_environment()
    ours = set(os.environ) - before
    yield Lab(tmp_path_factory.mktemp("checkpoints"))
    for name in ours:
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def tiny_checkpoint(quirk_lab: Lab) -> Callable[..., Path]:
    """Returns the folder of a tiny random checkpoint, built once per kind and seed: ``tiny_checkpoint("gemma3")``."""
    return quirk_lab.checkpoint


@pytest.fixture(scope="session")
def quirk_engine(quirk_lab: Lab) -> Callable[..., AbstractAsyncContextManager[VllmAsyncGenerationWorker]]:
    """Starts a worker with a small real engine (float32, eager) and shuts it down whatever happens.

    For example::

        async with quirk_engine(tiny_checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as worker:
            ...
    """
    return quirk_lab.worker
