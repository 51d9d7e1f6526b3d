"""Installs patches in the running process, with a guard against drift, and removes them again.

If the module of a target is not imported yet, the patch is pending until the import. Several wrappers of one target are nested
in the order of their quirks' ids, independent of the order in which they are installed and removed. A replacement is alone on
its target: no plan has others beside it (`quirks_core.plan.propose`).
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

from quirks_core.apply import imports
from quirks_core.base.errors import PatchDriftError, QuirksError
from quirks_core.declaration.adjustments import Patch
from quirks_core.plan.drift import drift_of
from quirks_core.source.vllm_source import INSTALLED

_MISSING = object()
#: Types whose values many unrelated names share.
_SHARED = (type(None), type(...), bool, int, float, complex, str, bytes, tuple, frozenset, Enum, ModuleType)


@dataclass(slots=True)
class _Site:
    """A target: its original value, and its patches by quirk id."""

    target: str
    patches: dict[str, Patch] = field(default_factory=dict)
    owner: Any = None
    name: str = ""
    original: Any = _MISSING
    current: Any = _MISSING

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def is_pending(self) -> bool:
        return self.owner is None

    def open(self) -> None:
        """Finds the target in its imported module."""
        owner: Any = sys.modules[self.module]
        *parents, self.name = self.target.partition(":")[2].split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        self.owner, self.original = owner, vars(owner).get(self.name, _MISSING)
        self.current = self.original

    def rebuild(self) -> None:
        """Rebuilds the target from the original and its patches."""
        value = self.original
        for _, patch in sorted(self.patches.items(), key=lambda item: (bool(item[1].wrapper), item[0])):
            made = pkgutil.resolve_name(patch.source)
            value = imports.wrapped(made, value) if patch.wrapper else made
        if value is self.current:
            return
        if value is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)
        shared = _is_others(self.original, self.module) or isinstance(self.current, _SHARED)
        if isinstance(self.owner, ModuleType) and not shared:
            _rebind(self.current, value, {patch.source.partition(":")[0] for patch in self.patches.values()})
        self.current = value


_sites: dict[str, _Site] = {}


def install(patch: Patch, quirk: str) -> Callable[[], None]:
    """Installs a patch on its target; if its module is not imported yet, as soon as it is. Doing so again has no effect.

    Returns:
        What removes it; other patches of the target stay, and a second call has no effect.

    Raises:
        PatchDriftError: The patch was not written against the target's source; nothing was changed.
        QuirksError: The target's module is being imported, and would define the target after the patch.
    """
    if problem := drift_of(patch, None, INSTALLED):
        raise PatchDriftError(f"{problem.reason} ('quirks doctor' shows what changed)")
    remove = partial(_remove, patch.target, quirk)
    site = _sites.get(patch.target) or _Site(patch.target)
    if site.patches.get(quirk) == patch:
        return remove
    if getattr(getattr(sys.modules.get(site.module), "__spec__", None), "_initializing", False):
        raise QuirksError(f"{patch.target} cannot be patched while its module is being imported")
    _sites[patch.target], site.patches[quirk] = site, patch
    try:
        if site.module in sys.modules:
            if site.is_pending:
                site.open()
            site.rebuild()
        else:
            imports.when_imported(site.module, _open_pending)
    except BaseException:
        remove()
        raise
    return remove


def is_pending(target: str) -> bool:
    """Returns whether a target has patches that wait for the import of its module."""
    return (site := _sites.get(target)) is not None and site.is_pending


def _remove(target: str, quirk: str) -> None:
    site = _sites.get(target)
    if site is None or site.patches.pop(quirk, None) is None:
        return
    if not site.is_pending:
        site.rebuild()
    if not site.patches:
        del _sites[target]
    if not _pending(site.module):
        imports.forget(site.module, _open_pending)


def _pending(module: str) -> list[_Site]:
    return [site for site in _sites.values() if site.module == module and site.is_pending]


def _open_pending(module: ModuleType) -> None:
    for site in _pending(module.__name__):
        site.open()
        site.rebuild()


def _is_others(value: Any, module: str) -> bool:
    """Returns whether other modules may have the same value independently: a constant, or an object of another module."""
    home = str(getattr(value, "__module__", module))
    name = str(getattr(value, "__name__", ""))
    lives_elsewhere = home != module and getattr(sys.modules.get(home), "__dict__", {}).get(name) is value
    return isinstance(value, _SHARED) or lives_elsewhere


def _rebind(old: Any, new: Any, but_not: Collection[str]) -> None:
    """Replaces the old object in every module that imported it with ``from … import``.

    The patch's own module keeps the original, because it may call it by that name.
    """
    if old is _MISSING or new is _MISSING:
        return
    for module in [module for name, module in list(sys.modules.items()) if name not in but_not]:
        # Reads the dictionary: attribute access on a lazy module (transformers) would import much of it.
        names: dict[str, Any] = getattr(module, "__dict__", None) or {}
        for name in [name for name, value in list(names.items()) if value is old]:
            names[name] = new
