"""What the tests of the command line share beside what all tests do: programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from installed import HAS_VLLM

#: What these import needs torch or numpy.
collect_ignore = [] if HAS_VLLM else ["test_audit.py", "test_migrate.py"]


@pytest.fixture(autouse=True)
def own_shell(shell: None) -> None:
    """Nothing of the developer's environment counts here."""


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``quirks`` in a process of its own, as a shell would."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "quirks_core.cli", *map(str, arguments)]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)

    return run
