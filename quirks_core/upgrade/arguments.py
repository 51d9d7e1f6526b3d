"""Engine arguments that are gone, renamed, of another type or with other choices, or, left open, with another default.

Configurations inside of arguments count as well: ``compilation_config.pass_config.enable_sp``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from quirks_core.configuration.slots import ENGINE, Slot, is_engine_argument
from quirks_core.source.engine_arguments import UNREAD, EngineArgument
from quirks_core.source.serve_options import members
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import Finding, Level, Section
from quirks_core.upgrade.paste import Form
from quirks_core.upgrade.release import Release
from quirks_core.upgrade.run import OnRelease

_CLOSE = 0.75
_MOST_SHOWN = 160


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Every argument of a release, and every field of the configurations in them, by name."""

    fields: Mapping[str, EngineArgument]
    nested: Mapping[str, EngineArgument]

    def find(self, path: str) -> EngineArgument | None:
        return self.fields.get(path) or self.nested.get(path)


@lru_cache(maxsize=8)
def _arguments(source: VllmSource) -> _Arguments | None:
    names = source.arguments.names()
    if names is None:
        return None
    fields = {name: found for name in sorted(names) if (found := source.arguments.find(name)) is not None}
    nested: dict[str, EngineArgument] = {}
    for name in fields:
        nested |= source.arguments.nested(name)
    return _Arguments(fields, nested)


def argument_changes(before: OnRelease, after: OnRelease, form: Form, server: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Yields what changes in the arguments that a run sets, and in the defaults of those that it leaves open.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
        form: How changes are written.
        server: Options of the server alone that were typed.
    """
    old, new = _arguments(before.release.source), _arguments(after.release.source)
    if old is None or new is None:
        which = before.release.name if old is None else after.release.name
        message = f"the source of {which} has no vllm.engine.arg_utils that could be read"
        yield Finding(section=Section.ARGUMENTS, level=Level.UNKNOWN, subject="engine arguments", message=message)
        return
    server_options = [option for option in after.release.source.options() or () if option.argument is None]
    options = {name for option in server_options for name in option.names}
    typed = dict(_typed(before))
    for path, value in sorted(typed.items()):
        if form.is_command and new.find(path) is None and f"--{path.replace('_', '-')}" in options:
            message = f"is an option of the server on {after.release.label}, and an argument of the engine no longer"
            yield Finding(section=Section.ARGUMENTS, level=Level.NOTE, subject=f"{ENGINE}{path}", message=message)
        else:
            yield from _typed_change(path, value, old, new, form)
    quirks = {slot.removeprefix(ENGINE): value for slot, value in after.plan.changes.items() if is_engine_argument(slot)}
    for name in sorted(quirks.keys() - typed.keys()):
        if name not in new.fields:
            message = f"a quirk sets it, and {after.release.label} has no such argument"
            yield Finding(section=Section.ARGUMENTS, level=Level.STOP, subject=f"{ENGINE}{name}", message=message)
    yield from _defaults(old, new, {*typed, *quirks}, form)
    yield from _server(server, after.release)


def _typed(side: OnRelease) -> Iterator[tuple[str, Any]]:
    """What the user typed, by path; of a mapping also what is in it."""
    for slot in sorted(side.context.typed):
        if is_engine_argument(slot):
            yield from _paths(slot.removeprefix(ENGINE), side.context.value(slot))


def _paths(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(f"{path}.{key}", inner)


def _typed_change(path: str, value: Any, old: _Arguments, new: _Arguments, form: Form) -> Iterator[Finding]:
    slot, was, now = f"{ENGINE}{path}", old.find(path), new.find(path)
    if was is None and now is None:
        if "." not in path:
            message = "neither release has such an argument"
            yield Finding(section=Section.ARGUMENTS, level=Level.STOP, subject=slot, message=message)
        return  # a key of a mapping that is no configuration: hf_overrides, for example
    if now is None and was is not None:
        yield _gone(path, value, was, old, new, form)
        return
    if now is None:
        return
    if problem := Slot(slot, now.type).problem(value):
        message = f"{problem} ({_line(now)})"
        yield Finding(section=Section.ARGUMENTS, level=Level.STOP, subject=slot, message=message)
    elif was is not None and was.type != now.type:
        lost, won = _choices(was.type, now.type)
        if lost or won or not _same_kinds(was.type, now.type):
            message = f"its type changes from {was.annotation} to {now.annotation}; {_shown(value)} is still taken"
            lines = tuple(line for line in (f"gone: {lost}" if lost else "", f"new: {won}" if won else "") if line)
            yield Finding(section=Section.ARGUMENTS, level=Level.NOTE, subject=slot, message=message, lines=lines)


def _gone(path: str, value: Any, was: EngineArgument, old: _Arguments, new: _Arguments, form: Form) -> Finding:
    """An argument that is used and that the other release does not have, with the one that took its place if that is told."""
    slot = f"{ENGINE}{path}"
    fresh = {name: found for name, found in (*new.fields.items(), *new.nested.items()) if old.find(name) is None}
    same_home = [
        name for name, found in fresh.items() if was.owner and (found.owner, found.attribute) == (was.owner, was.attribute)
    ]
    lines = (_line(was),)
    if len(same_home) == 1:
        message = f"is now called {same_home[0]} (both set {was.owner}.{was.attribute})"
        return Finding(
            section=Section.ARGUMENTS, level=Level.CHANGE, subject=slot, message=message, lines=lines,
            paste=f"{form.set(f'{ENGINE}{same_home[0]}', value)}   # instead of {path}",
        )  # fmt: skip
    close = difflib.get_close_matches(path, fresh, n=1, cutoff=_CLOSE)
    near = f"; new there, and of a similar name: {close[0]}" if close else ""
    message = f"is gone{near}; the source does not say what replaces it"
    return Finding(
        section=Section.ARGUMENTS, level=Level.CHANGE, subject=slot, message=message, lines=lines, paste=form.leave_out(slot)
    )


def _defaults(old: _Arguments, new: _Arguments, used: set[str], form: Form) -> Iterator[Finding]:
    for path in sorted({*old.fields, *old.nested} & {*new.fields, *new.nested} - used):
        was, now = old.find(path), new.find(path)
        if was is None or now is None or was.default_text == now.default_text or _is_out_of_use(path, old, new, used):
            continue
        message = f"left open, and its default changes from {_shown_text(was)} to {_shown_text(now)}"
        keep = ""
        if was.default is not UNREAD and was.default is not None:
            keep = f"; {form.set(f'{ENGINE}{path}', was.default)} keeps what was" if "." not in path else ""
        yield Finding(
            section=Section.ARGUMENTS,
            level=Level.NOTE,
            subject=f"{ENGINE}{path}",
            message=f"{message}{keep}",
            lines=(_line(now),),
        )


def _is_out_of_use(path: str, old: _Arguments, new: _Arguments, used: set[str]) -> bool:
    """Tells whether a field is in a configuration that the run leaves out: its argument is None unless somebody sets it."""
    top = path.partition(".")[0]
    if top == path or top in used:
        return False
    return all(side.fields[top].default is None for side in (old, new) if top in side.fields)


def _server(server: tuple[str, ...], after: Release) -> Iterator[Finding]:
    """Options of the server that were typed and are gone."""
    options = after.source.options() or ()
    if server and not any(option.argument is None for option in options):
        message = f"the source of {after.label} does not tell which options its server has"
        yield Finding(section=Section.ARGUMENTS, level=Level.UNKNOWN, subject="vllm serve", message=message)
        return
    known = {name for option in options for name in option.names}
    for name in server:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
            message = f"'vllm serve' of {after.label} has no such option" + (f"; it has {close[0]}" if close else "")
            yield Finding(
                section=Section.ARGUMENTS, level=Level.CHANGE, subject=name, message=message, paste=f"leave out {name}"
            )


def _choices(was: Any, now: Any) -> tuple[str, str]:
    """The values that are gone, and those that are new."""
    old, new = (
        {value for kind in members(one) if get_origin(kind) is Literal for value in get_args(kind)} for one in (was, now)
    )
    return ", ".join(sorted(map(str, old - new))), ", ".join(sorted(map(str, new - old)))


def _same_kinds(was: Any, now: Any) -> bool:
    return {kind for kind in members(was) if get_origin(kind) is not Literal} == {
        kind for kind in members(now) if get_origin(kind) is not Literal
    }


def _line(argument: EngineArgument) -> str:
    return _cut(f"{argument.place}: {argument.help}" if argument.help else argument.place)


def _shown_text(argument: EngineArgument) -> str:
    return _cut(argument.default_text) or "nothing"


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
