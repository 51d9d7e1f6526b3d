"""Shared memory of an engine's processes: vLLM's segments outlive processes that are killed, and fill ``/dev/shm``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

#: Where Linux keeps POSIX shared memory.
PLACE = Path("/dev/shm")  # noqa: S108 - not a folder for temporary files
#: Names of Python's shared memory and of vLLM's on the CPU; others of a process are not the engine's.
_MAPPED = re.compile(rf"{PLACE}/((?:psm_|vllm_dist_)\S+)$", re.MULTILINE)
_LIST = "shared-memory"


def record(folder: Path, pids: Iterable[int]) -> None:
    """Writes down which segments processes have mapped, for whoever removes the folder after they were killed.

    Args:
        folder: The run's private folder.
        pids: The engine's processes without the driver, whose own segments may be a trainer's.
    """
    names: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            names |= set(_MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")))
    with suppress(OSError):  # the folder has vanished, or its disk is full: the start fails with that
        (folder / _LIST).write_text("\n".join(sorted(names)), encoding="utf-8")


def remove(folder: Path) -> None:
    """Removes what was recorded in a folder; call it when the processes have ended, or are about to."""
    with suppress(OSError):
        for name in (folder / _LIST).read_text(encoding="utf-8").split():
            (PLACE / name).unlink(missing_ok=True)
