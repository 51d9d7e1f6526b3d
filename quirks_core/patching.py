"""Installs patches in the running process, with a guard against drift, and takes them off again."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from quirks_core import sources
from quirks_core.adjustments import Patch
from quirks_core.errors import PatchDriftError

_MISSING = object()


@dataclass(frozen=True, slots=True)
class InstalledPatch:
    """A patch in force; `undo` restores what was there."""

    target: str
    fingerprint: str
    owner: Any
    name: str
    original: Any

    def undo(self) -> None:
        """Puts the original back."""
        if self.original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


def install(patch: Patch) -> InstalledPatch:
    """Replaces the target by what the patch's function makes of it.

    Raises:
        PatchDriftError: The target's source is none that the patch was written against; nothing was changed.
    """
    found = sources.fingerprint(patch.target)
    if found not in patch.fingerprints:
        raise PatchDriftError(
            f"{patch.target} has fingerprint {found}, but the patch was written against {', '.join(patch.fingerprints)}"
        )
    module, _, path = patch.target.partition(":")
    *parents, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    original = vars(owner).get(name, _MISSING)
    factory_module, _, factory = patch.replacement.partition(":")
    make = getattr(importlib.import_module(factory_module), factory)
    setattr(owner, name, make(None if original is _MISSING else original))
    return InstalledPatch(patch.target, found, owner, name, original)
