"""Engine arguments and server options that the source of a release no longer has, with what replaces them.

The source suggests; whether a release takes a run is decided by its own parser (`judged`), unless only source may be read.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quirks_core.configuration.slots import Place, Slot, placed
from quirks_core.source.engine_arguments import EngineArgument
from quirks_core.source.vllm_source import VllmSource
from quirks_core.upgrade.finding import Finding, Level, Section
from quirks_core.upgrade.release import Release
from quirks_core.upgrade.run import OnRelease
from quirks_core.upgrade.suggestions import REMARK, Form

_CLOSE, _SAME_HELP = 0.75, 0.8
_MOST_SHOWN = 160
#: vLLM's words for options that do nothing, or will go.
DEPRECATED = re.compile(r"deprecat|no effect|no longer|will be removed|is ignored|are ignored|ignoring", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change of the run that the source suggests.

    Attributes:
        path: The argument that is used, with dots for what is in it; an option of the server by its name.
        instead: The argument that takes its place; empty if it is to be left out.
        finding: Its entry in the report.
    """

    path: str
    instead: str
    finding: Finding


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


def suggestions(before: OnRelease, after: OnRelease, form: Form, server: tuple[str, ...] = ()) -> Iterator[Suggestion]:
    """Yields the changes that the run needs because an argument is gone or renamed.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
        form: How changes are written.
        server: Options of the server alone that were typed.
    """
    old, new = _arguments(before.release.source), _arguments(after.release.source)
    if old is None or new is None:
        return
    options = {name for option in after.release.source.options() or () for name in (*option.names, *option.inverse)}
    gone = [
        (path, was)
        for path in sorted(dict(_typed(before)))
        if (was := old.find(path)) is not None
        and new.find(path) is None
        and not (form.is_command and f"--{path.replace('_', '-')}" in options)
    ]
    typed = _without_all(dict(_typed(before)), [path for path, _ in gone])
    for path, was in gone:
        yield _gone(path, typed, was, old, new, form)
    for name in server if options else ():
        if name not in options:
            message = f"'vllm serve' of {after.release.label} has no such option"
            yield Suggestion(name, "", _change(name, message, f"leave out {name}"))


def source_findings(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields what no parser of a release can show: arguments that a quirk sets there, and source that cannot be read.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    for side in (before, after):
        if _arguments(side.release.source) is None:
            message = f"the source of {side.release.name} has no vllm.engine.arg_utils that could be read"
            yield Finding(section=Section.ARGUMENTS, level=Level.UNKNOWN, subject="engine arguments", message=message)
            return
    known = after.release.source.arguments.names() or frozenset()
    quirks = placed(Place.ARGUMENT, after.plan.changes).keys()
    for name in sorted(quirks - dict(_typed(before)).keys() - known):
        message = f"a quirk sets it, and {after.release.label} has no such argument"
        yield Finding(section=Section.ARGUMENTS, level=Level.STOP, subject=f"engine.{name}", message=message)


def deprecated(before: OnRelease, after: OnRelease) -> dict[str, str]:
    """Returns the arguments of a run that the release in question is the first to call deprecated, with its text for them.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    old, new = _arguments(before.release.source), _arguments(after.release.source)
    found = {}
    for path, _ in _typed(before):
        was, now = old.find(path) if old else None, new.find(path) if new else None
        if was is None or now is None or DEPRECATED.search(was.help):
            continue
        text = now.help or after.release.source.arguments.help_of(was.owner, was.attribute)
        if DEPRECATED.search(text):
            found[path] = text
    return found


def read_findings(before: OnRelease, after: OnRelease, why: str) -> Iterator[Finding]:
    """Yields what source alone shows about the values of a run, and that it does not show more.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
        why: Why the parser of the release is not run.
    """
    new = _arguments(after.release.source)
    typed = dict(_typed(before))
    for path, value in sorted(typed.items()) if new else ():
        now = new.find(path) if new else None
        if now is not None and (problem := Slot(f"engine.{path}", now.type).problem(value)):
            lines = (_line(now),)
            yield Finding(section=Section.ARGUMENTS, level=Level.STOP, subject=f"engine.{path}", message=problem, lines=lines)
        elif now is None and "." not in path and path not in (before.release.source.arguments.names() or ()):
            message = "neither release has such an argument"
            yield Finding(section=Section.ARGUMENTS, level=Level.STOP, subject=f"engine.{path}", message=message)
    message = f"{why}: whether {after.release.label} takes the values of this run, alone and together, and what it makes of "
    message += "those that are left open"
    yield Finding(section=Section.ARGUMENTS, level=Level.UNKNOWN, subject="values", message=message)


def _typed(side: OnRelease) -> Iterator[tuple[str, Any]]:
    """What the user typed, by path; a mapping also by the paths in it."""
    for name, value in side.context.typed_arguments.items():
        yield from _paths(name, value)


def _paths(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(f"{path}.{key}", inner)


def _without_all(typed: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """What was typed, with mappings that lack all of these paths."""
    left = dict(typed)
    for path in paths:
        top, *keys = path.split(".")
        if keys:
            left[top] = without(left[top], keys)
    return left


def _gone(path: str, typed: Mapping[str, Any], was: EngineArgument, old: _Arguments, new: _Arguments, form: Form) -> Suggestion:
    """An argument that is used and that the other release does not have, with the one that took its place if that is known."""
    slot = f"engine.{path}"
    fresh = {name: found for name, found in (*new.fields.items(), *new.nested.items()) if old.find(name) is None}
    same_home = [
        name for name, found in fresh.items() if was.owner and (found.owner, found.attribute) == (was.owner, was.attribute)
    ]
    if len(same_home) == 1:
        why, instead = f"both set {was.owner}.{was.attribute}", same_home[0]
    else:
        why, instead = "its description is nearly the same", _by_help(was, fresh)
    if instead:
        paste = f"{form.set(f'engine.{instead}', typed[path])}{REMARK}instead of {path}"
        return Suggestion(path, instead, _change(slot, f"is now called {instead} ({why})", paste, _line(was)))
    close = difflib.get_close_matches(path, fresh, n=1, cutoff=_CLOSE)
    near = f"; new there, and of a similar name: {close[0]}" if close else ""
    message = f"is gone{near}; the source does not say what replaces it"
    return Suggestion(path, "", _change(slot, message, _left_out(path, form, typed), _line(was)))


def _by_help(was: EngineArgument, fresh: Mapping[str, EngineArgument]) -> str:
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


def _left_out(path: str, form: Form, typed: Mapping[str, Any]) -> str:
    """How to leave an argument out: without it, or by the rest of a mapping that was typed as a whole."""
    top, dot, _ = path.partition(".")
    if not dot or not form.is_command:
        return form.leave_out(f"engine.{path}")
    left = typed[top]
    return form.set(f"engine.{top}", left) if left else form.leave_out(f"engine.{top}")


def without(value: Any, keys: Sequence[str]) -> Any:
    """Returns a mapping without what a path of keys leads to; mappings that this leaves empty go as well."""
    if not isinstance(value, dict) or keys[0] not in value:
        return value
    rest = {key: inner for key, inner in value.items() if key != keys[0]}
    if len(keys) > 1 and (inner := without(value[keys[0]], keys[1:])):
        rest[keys[0]] = inner
    return rest


# ---- the run with the changes


def changed_arguments(arguments: Mapping[str, Any], found: Sequence[Suggestion]) -> dict[str, Any]:
    """Returns engine arguments with the suggested changes."""
    left = dict(arguments)
    for one in found:
        top, *keys = one.path.split(".")
        if not keys:
            value = left.pop(top, None)
            if one.instead:
                left[one.instead] = value
        elif top in left and (rest := without(left[top], keys)):
            left[top] = rest
        else:
            left.pop(top, None)
    return left


def changed_words(words: Sequence[str], found: Sequence[Suggestion], before: Release) -> tuple[str, ...]:
    """Returns the words after ``vllm serve`` with the suggested changes."""
    left = list(words)
    for one in found:
        top, *keys = one.path.removeprefix("--").split(".")
        option = before.source.option_of(top.replace("-", "_"))
        names = set(option.names) if option else {f"--{top.replace('_', '-')}"}
        left = list(_changed(left, names, keys, one.instead))
    return tuple(left)


def _changed(words: Sequence[str], names: set[str], keys: Sequence[str], instead: str) -> Iterator[str]:
    """Words in which one option is left out, renamed, or has a key less."""
    number = 0
    while number < len(words):
        word, number = words[number], number + 1
        head, equals, value = word.partition("=")
        name, *inner = head.split(".")
        name = name.replace("_", "-") if name.startswith("--") else name
        is_it = name in names or name.replace("--no-", "--", 1) in names
        if not is_it or (inner and [key.removesuffix("+") for key in inner][: len(keys)] != list(keys)):
            yield word
            continue
        values = [value] if equals else []
        while not equals and number < len(words) and not words[number].startswith("-"):
            values, number = [*values, words[number]], number + 1
        if keys and not inner and values:
            if left := without(_json(values[0]), keys):
                yield from (name, json.dumps(left))
        elif instead:
            yield from (f"--{instead.replace('_', '-')}", *values)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _change(subject: str, message: str, paste: str, *lines: str) -> Finding:
    return Finding(section=Section.ARGUMENTS, level=Level.CHANGE, subject=subject, message=message, lines=lines, paste=paste)


def _line(argument: EngineArgument) -> str:
    text = f"{argument.place}: {argument.help}" if argument.help else argument.place
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
