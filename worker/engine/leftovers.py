"""What killed processes leave behind: folders of runs, groups and refits."""

from __future__ import annotations

from contextlib import suppress

from quirks_core.base import private_folder
from quirks_core.hook.in_force import RUNS

#: How the names of our folders begin: those of a group's actors, and of refits.
ACTORS, REFITS = "mqa-", "mq-"


def collect() -> None:
    """Removes what this user's processes left that no longer run."""
    with suppress(OSError):  # a folder for temporary files that cannot be listed
        private_folder.remove_abandoned((RUNS, ACTORS, REFITS))
