"""The pytest plugin for authors of quirks: fixtures for contexts, a bare registry, tiny checkpoints and real engines.

pytest loads it wherever model-quirks is installed, so it imports nothing of the project before a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from quirks_core.apply import Applied
    from quirks_core.context import RunContext
    from quirks_core.quirk import Quirk
    from quirks_core.testing.bare import BareRegistry
    from quirks_core.testing.lab import Lab
    from worker.async_worker import VllmAsyncGenerationWorker

#: The marker ``@pytest.mark.quirk``.
pytest_plugins = ("quirks_core.testing.marker",)


@pytest.fixture
def quirk_context() -> Callable[..., RunContext]:
    """Builds the facts of a run from keywords, those of `quirks_core.Example`; nothing installed is looked at.

    For example::

        context = quirk_context(config={"model_type": "acme"}, settings={"engine.load_format": "dummy"}, platform="cuda")

    Settings count as typed by the user; ``typed=()`` makes them the configuration's defaults.
    """
    from quirks_core.examples import Example
    from quirks_core.slots import find_slot
    from quirks_core.trace import Answer

    def build(*, typed: Any = None, **facts: Any) -> RunContext:
        context = Example(answer=Answer.UNKNOWN, **facts).context()
        if typed is None:
            return context
        return context.model_copy(update={"typed": frozenset(find_slot(name).name for name in typed)})

    return build


@pytest.fixture
def quirk_registry() -> BareRegistry:
    """A registry that holds what the test adds, and refuses to look at what is installed.

    For example::

        plan = quirk_registry.add(QUIRK).resolve(quirk_context(config={"model_type": "acme"}))
    """
    from quirks_core.testing.bare import BareRegistry

    return BareRegistry()


@pytest.fixture
def applied() -> Callable[[Quirk, RunContext], AbstractContextManager[Applied]]:
    """Puts one quirk into force in this process and undoes it, patches and environment: `quirks_core.testing.applied`."""
    from quirks_core.testing.applied import applied

    return applied


@pytest.fixture(scope="session")
def quirk_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Tiny checkpoints, small real engines, transformers as the reference, and comparers: `quirks_core.testing.lab.Lab`."""
    from quirks_core.testing.lab import Lab, set_environment

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
