"""Engine arguments and server options that the source of a release no longer has, with what replaces them.

The source suggests; whether a release takes a run is decided by its own parser (`judged`), unless only source may be read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from quirks_core.base.errors import shortened
from quirks_core.configuration.serve_command import ServeCommand
from quirks_core.configuration.slots import Place, Slot, placed
from quirks_core.reporting.finding import Finding
from quirks_core.source.engine_arguments import EngineArgument
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.changes import Change, changed_values
from quirks_core.upgrade.finding import Level, Section
from quirks_core.upgrade.release import OnRelease

_CLOSE, _SAME_HELP = 0.75, 0.8
_MOST_SHOWN = 160


@lru_cache(maxsize=8)
def _arguments(source: VllmSource) -> Mapping[str, EngineArgument]:
    """Every argument of a release, and every field of the configurations in them, by name; empty if it cannot be read."""
    names = sorted(source.arguments.names() or ())
    found = {name: argument for name in names if (argument := source.arguments.find(name)) is not None}
    nested = (source.arguments.nested(name) for name in tuple(found))
    return {**found, **{path: argument for fields in nested for path, argument in fields.items()}}


def suggestions(before: OnRelease, after: OnRelease, command: ServeCommand | None) -> Iterator[Finding]:
    """Yields the changes that the run needs because an argument, or an option of the server alone, is gone or renamed.

    A command line has a mapping typed as a whole.
    """
    old, new = _arguments(before.release.source), _arguments(after.release.source)
    if not new:  # that it is not decided is a finding already
        return
    options = {name for option in after.release.source.options() or () for name in option.spellings}
    typed = dict(_typed(before))
    gone = [
        (path, was)
        for path in sorted(typed)
        if (was := old.get(path)) is not None and path not in new and not (command and f"--{path.replace('_', '-')}" in options)
    ]
    fresh = {name: found for name, found in new.items() if name not in old}
    known = {path: _successor(was, fresh) for path, was in gone}
    changes = {
        path: Change(f"engine.{path}", f"engine.{instead}", typed[path], f"instead of {path}")
        if instead
        else Change(f"engine.{path}")
        for path, instead in known.items()
    }
    left = changed_values({"engine": before.context.typed_arguments}, changes.values())["engine"]
    for path, was in gone:
        instead, change, top = known[path], changes[path], path.partition(".")[0]
        if command and path != top and (not instead or instead.startswith(f"{top}.")):
            whole = f"engine.{top}"
            change = Change(whole, whole if top in left else "", left.get(top), change.remark)
        close = difflib.get_close_matches(path, fresh, n=1, cutoff=_CLOSE)
        near = f"; new there, and of a similar name: {close[0]}" if close else ""
        unreplaced = f"is gone{near}; the source does not say what replaces it"
        message = f"is now called {instead} (its description is nearly the same)" if instead else unreplaced
        yield Section.ARGUMENTS.finding(Level.CHANGE, f"engine.{path}", message, (_line(was),), change)
    for name in command.server if command and options else ():
        if name not in options:
            message = f"'vllm serve' of {after.release.label} has no such option"
            yield Section.ARGUMENTS.finding(Level.CHANGE, name, message, change=Change(name))


def source_findings(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields the arguments that a quirk sets and the release does not have, which no parser of it can show."""
    known = after.release.source.arguments.names()
    quirks = placed(Place.ARGUMENT, after.plan.changes).keys() - dict(_typed(before)).keys()
    for name in sorted(quirks - known) if known is not None else ():
        message = f"a quirk sets it, and {after.release.label} has no such argument"
        yield Section.ARGUMENTS.finding(Level.STOP, f"engine.{name}", message)


def read_findings(before: OnRelease, after: OnRelease, why: str) -> Iterator[Finding]:
    """Yields what source alone shows about the values of a run, and that it does not show more."""
    new = _arguments(after.release.source)
    for path, value in sorted(dict(_typed(before)).items()) if new else ():
        now = new.get(path)
        if now is not None and (problem := Slot(f"engine.{path}", now.type).problem(value)):
            lines = (_line(now),)
            yield Section.ARGUMENTS.finding(Level.STOP, f"engine.{path}", problem, lines)
        elif now is None and "." not in path and path not in (before.release.source.arguments.names() or ()):
            message = "neither release has such an argument"
            yield Section.ARGUMENTS.finding(Level.STOP, f"engine.{path}", message)
    message = f"{why}: whether {after.release.label} takes the values of this run, alone and together, and what it makes of "
    message += "those that are left open"
    yield Section.ARGUMENTS.finding(Level.UNKNOWN, "values", message)


def _typed(side: OnRelease) -> Iterator[tuple[str, Any]]:
    """What the user typed, by path; a mapping also by the paths in it."""
    for name, value in side.context.typed_arguments.items():
        yield from _paths(name, value)


def _paths(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(f"{path}.{key}", inner)


def _successor(was: EngineArgument, fresh: Mapping[str, EngineArgument]) -> str:
    """The one new argument of the same type whose description is nearly the same; empty if there is none."""
    same = [
        name
        for name, found in fresh.items()
        if "." not in name
        and was.type == found.type
        and len(was.help) > 20
        and difflib.SequenceMatcher(None, was.help, found.help, autojunk=False).ratio() > _SAME_HELP
    ]
    return same[0] if len(same) == 1 else ""


def _line(argument: EngineArgument) -> str:
    return shortened(f"{argument.place}: {argument.help}" if argument.help else argument.place, _MOST_SHOWN)
