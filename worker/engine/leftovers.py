"""What killed processes left behind: folders of runs, groups and refits, and the shared memory of their engines."""

from __future__ import annotations

import logging
from pathlib import Path

from quirks_core.base import private_folder
from quirks_core.hook.in_force import RUNS
from worker.engine import shared_memory

_LOGGER = logging.getLogger("model_quirks")
#: How the names of our folders begin: those of a group's actors, and of refits.
ACTORS, REFITS = "mqa-", "mq-"


def collect(parent: str | Path | None = None) -> None:
    """Removes what this user's processes left that no longer run. What goes wrong is logged: it is no reason not to start.

    Args:
        parent: Where the folders are; the system's folder for temporary files if None.
    """
    try:
        for folder in private_folder.abandoned((RUNS, ACTORS, REFITS), parent):
            remove_shared_memory(folder)
    except OSError as error:
        _LOGGER.warning("what earlier runs left behind was not removed: %s", error)


def remove_shared_memory(folder: Path) -> None:
    """Removes the shared memory of a run, or of the runs below an actor's folder."""
    for run in (folder, *folder.glob(f"{RUNS}*")):
        shared_memory.remove(run)
