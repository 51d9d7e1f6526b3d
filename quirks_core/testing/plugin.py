"""The pytest plugin for authors of quirks: fixtures for contexts, an isolated registry and a quirk put into force.

pytest loads it on request: ``-p quirks_core.testing.plugin``, or ``pytest_plugins = ["quirks_core.testing.plugin"]`` in a
``conftest.py``. It imports nothing of the project before a test uses it, so that a run measures what its tests import.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from quirks_core.declaration.quirk import Quirk
    from quirks_core.facts.context import RunContext
    from quirks_core.hook.in_force import AppliedQuirks
    from quirks_core.testing.isolated_registry import IsolatedRegistry


@pytest.fixture
def quirk_context() -> Callable[..., RunContext]:
    """Builds the facts of a run; takes what `quirks_core.yes` takes, and looks at nothing that is installed.

    For example::

        context = quirk_context("acme", {"engine.load_format": "dummy"}, vllm="0.32.0", platform="cuda")

    Settings count as typed by the user; ``defaults={…}`` has those that are the configuration's.
    """
    from quirks_core.declaration.examples import unknown

    def build(model: Any = None, settings: Any = None, **run: Any) -> RunContext:
        return unknown(model, settings, **run).context()

    return build


@pytest.fixture
def quirk_registry() -> IsolatedRegistry:
    """A registry that holds what the test adds, and refuses to look at what is installed.

    For example::

        plan = quirk_registry.add(QUIRK).resolve(quirk_context("acme"))
    """
    from quirks_core.testing.isolated_registry import IsolatedRegistry

    return IsolatedRegistry()


@pytest.fixture
def applied() -> Callable[[Quirk, RunContext], AbstractContextManager[AppliedQuirks]]:
    """Puts one quirk into force in this process and undoes it, patches and environment: `quirks_core.testing.applied`."""
    from quirks_core.testing.applied import applied

    return applied
