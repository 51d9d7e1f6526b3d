"""What the tests of the command line share beside what all tests do: programs in processes of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial

import pytest
from installed import HAS_VLLM
from programs import run_python

#: What it imports needs numpy.
collect_ignore = [] if HAS_VLLM else ["test_migrate.py"]


@pytest.fixture(autouse=True)
def own_shell(shell: None) -> None:
    """Nothing of the developer's environment counts here."""


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``quirks`` in a process of its own, as a shell would."""
    return partial(run_python, "-m", "quirks_core.cli")
