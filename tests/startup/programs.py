"""Programs that tests start: what they inherit, and what they leave behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import HUNG_S

#: Numbers of ports that this process has not tried yet.
_PORTS = iter(range(500))

_THEIRS = ("ACME_", "HF_", "MODEL_QUIRKS", "NCCL_", "NRL_", "PIP_", "PYTEST_", "PYTHON", "VLLM_")


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


def inherited() -> dict[str, str]:
    """Returns an environment with a wide terminal without colours, and nothing that the developer has set for our tools."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_THEIRS)}
    return {**kept, "COLUMNS": "300", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb"}


def run_python(
    *arguments: object,
    cwd: Path | None = None,
    interpreter: str | Path = sys.executable,
    environ: Mapping[str, str] = os.environ,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, with some more variables."""
    command, given = [str(interpreter), *map(str, arguments)], {**environ, **variables}
    return subprocess.run(command, cwd=cwd, env=given, capture_output=True, encoding="utf-8", timeout=HUNG_S, check=False)


def children() -> set[Any]:
    """Returns the processes below this one; multiprocessing's tracker of resources stays as long as it does."""
    import psutil  # it comes with an engine

    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child)
    return found


def free_port() -> int:
    """Returns a free port that no other program gets by chance: systems give out those from 32 768 on."""
    for number in _PORTS:
        found = 21_000 + (500 * os.getpid() + number) % 11_768  # each process begins elsewhere
        with suppress(OSError), socket.create_server(("127.0.0.1", found)):
            return found
    raise AssertionError("no port is free")
