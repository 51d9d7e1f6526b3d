"""What killed processes leave behind: folders of runs, groups and refits, and the shared memory of their engines.

VLLM's segments of shared memory outlive processes that are killed, and fill ``/dev/shm``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from quirks_core.base import private_folder
from quirks_core.hook.in_force import RUNS

#: How the names of our folders begin: those of a group's actors, and of refits.
ACTORS, REFITS = "mqa-", "mq-"
#: Where Linux keeps POSIX shared memory.
PLACE = Path("/dev/shm")  # noqa: S108 - not a folder for temporary files
#: Names of Python's shared memory and of vLLM's on the CPU; others of a process are not the engine's.
_MAPPED = re.compile(rf"{PLACE}/((?:psm_|vllm_dist_)\S+)$", re.MULTILINE)
_LIST = "shared-memory"


def collect() -> None:
    """Removes what this user's processes left that no longer run."""
    with suppress(OSError):  # a folder for temporary files that cannot be listed
        for folder in private_folder.abandoned((RUNS, ACTORS, REFITS)):
            remove_shared_memory(folder)


def record_shared_memory(folder: Path, pids: Iterable[int]) -> None:
    """Writes down, in a run's folder, which segments its processes have mapped, for whoever removes it after they were killed.

    The driver is none of those processes: its own segments may be a trainer's.
    """
    names: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            names |= set(_MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")))
    with suppress(OSError):  # the folder is gone, or the disk full: the processes must be stopped all the same
        (folder / _LIST).write_text("\n".join(sorted(names)), encoding="utf-8")


def remove_shared_memory(folder: Path) -> None:
    """Removes what was recorded of a run, or of the runs below an actor's folder; call it when the processes have ended."""
    for run in (folder, *folder.glob(f"{RUNS}*")):
        with suppress(OSError):
            for name in (run / _LIST).read_text(encoding="utf-8").split():
                (PLACE / name).unlink(missing_ok=True)
