"""Hides the quirks and commands of other packages in the developer's environment."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from installations import lay


def hide_plugins(folder: Path) -> None:
    """Puts metadata without entry points before those of packages that have quirks or commands, also in processes to come.

    A process with a path of its own finds the folder in TESTS_HIDDEN.
    """
    found = {point.dist for group in ("model_quirks", "model_quirks.commands") for point in entry_points(group=group)}
    for dist in found:
        if dist is not None and dist.name != "model-quirks":
            lay(folder, dist.name, dist.version)
    if folder.exists():
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        os.environ["TESTS_HIDDEN"] = str(folder)
