"""Environment variables that the user or a quirk sets, and that only one of two releases reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from quirks_core.configuration.slots import Place, placed
from quirks_core.facts.packages import PLATFORMS
from quirks_core.reporting.finding import Finding
from quirks_core.upgrade.changes import Change
from quirks_core.upgrade.finding import Level, Section
from quirks_core.upgrade.release import OnRelease, Release

#: Variables of vLLM's; others are read by what it rests on, whose source is not compared.
_PREFIX = "VLLM_"
#: Names of variables that limit something, and defaults with which they do not.
_LIMIT, _NO_LIMIT = re.compile(r"_MAX_|_LIMIT|_TIMEOUT"), ("None", "0", "-1", "False", "''")


def variable_changes(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields the variables that the release in question no longer reads, and those that it is the first to read."""
    user = set(before.context.environment) | set(after.context.environment)
    quirks = placed(Place.VARIABLE, {**before.plan.changes, **after.plan.changes}).keys()
    names = sorted(name for name in user | quirks if name.startswith(_PREFIX))
    old, new = _read(before.release, names), _read(after.release, names)
    for name in names:
        who = "the user sets" if name in user else "a quirk sets"
        level, change = Level.NOTE, None
        match old.get(name), new.get(name):
            case True, False:
                what = f"{after.release.label} no longer reads it: it has no effect there"
                level, change = (Level.CHANGE, Change(f"env.{name}")) if name in user else (level, change)
            case False, True:
                what = f"{after.release.label} is the first of the two to read it"
            case False, False:
                what = "neither release reads it"
            case _, None:
                level, what = Level.UNKNOWN, f"the source of {after.release.label} does not tell whether it reads it"
            case _:
                continue
        yield Section.VARIABLES.finding(level, name, f"{who} it, and {what}", change=change)


def variable_defaults(before: OnRelease, after: OnRelease, *, is_server: bool) -> Iterator[Finding]:
    """Yields the variables that are not set: limits that are new to a server, and those whose default changes.

    Those of other platforms are left out, and those of media for a model that takes none.
    """
    old, new = _defaults(before.release), _defaults(after.release)
    used = {*after.context.environment, *placed(Place.VARIABLE, after.plan.changes)}
    others = [f"_{name.upper()}_" for name in PLATFORMS if name != after.context.platform]
    open_ = [
        name for name in sorted(new.keys() - used) if not (after.context.platform and any(mark in name for mark in others))
    ]
    limits = [
        f"{name}={new[name]}"
        for name in open_
        if name not in old and _LIMIT.search(name) and new[name] not in _NO_LIMIT
        if "MEDIA" not in name or after.context.model.is_multimodal
    ]
    if is_server and old and limits:
        message = f"{after.release.label} has limits that {before.release.label} does not have: {', '.join(limits)}"
        yield Section.VARIABLES.finding(Level.NOTE, "new limits", message)
    if changed := [f"{name}: {old[name]} → {new[name]}" for name in open_ if name in old and old[name] != new[name]]:
        message = f"{len(changed)} that are not set here have another default: {'; '.join(changed)}"
        yield Section.VARIABLES.finding(Level.NOTE, "defaults", message)


def _defaults(release: Release) -> Mapping[str, str]:
    """The defaults that ``vllm/envs.py`` declares."""
    tree = release.source.parsed("vllm.envs")
    fields = [node for block in (tree.body if tree else ()) if isinstance(block, ast.If) for node in block.body]
    return {
        node.target.id: ast.unparse(node.value)
        for node in fields
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }


def _read(release: Release, names: list[str]) -> Mapping[str, bool]:
    """Which of the variables a release reads; empty if its source does not show it."""
    unread = release.source.unread_by_engine(names) if names else ()
    return {} if unread is None else {name: name not in unread for name in names}
