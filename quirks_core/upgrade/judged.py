"""What the parsers, dataclasses and checks of two releases make of one run, held against each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quirks_core.base.errors import shortened, shown
from quirks_core.reporting.finding import Finding
from quirks_core.source.engine_parser import Judgement, Outcome
from quirks_core.upgrade.changes import Change
from quirks_core.upgrade.finding import Level, Section

_STAGES = ("options", "server", "engine arguments", "configuration", "all")
#: A list of everything that would be taken.
_CHOICES = re.compile(r"(?:choose from|registered:|Input should be) .*")
#: vLLM's words for options that do nothing, or will go.
_DEPRECATED = re.compile(r"deprecat|no effect|no longer|will be removed|is ignored|are ignored|ignoring", re.IGNORECASE)
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgements of two releases.

    Attributes:
        before: The judgement of the release that the run uses.
        after: The judgement of the release in question.
        changed: Its judgement of the run with the suggested changes; None if there are none.
        names: The two releases, as the report calls them.
        platform: The platform of the run; None if it is not known.
        of_cpu: Keys of the configuration that the CPU platform, on which both releases judge, sets by itself.
    """

    before: Judgement
    after: Judgement
    changed: Judgement | None
    names: tuple[str, str]
    platform: str | None
    of_cpu: frozenset[str] = frozenset()

    def refuses(self, found: Judgement) -> bool:
        """Whether the release refuses it: on the CPU platform only if that is the platform of the run."""
        return found.outcome is Outcome.REFUSED or (found.outcome is Outcome.PLATFORM and self.platform == "cpu")


def judged_findings(judged: Judged, suggested: Sequence[Finding]) -> Iterator[Finding]:
    """Yields what changes between two releases, by their own judgements.

    What the source suggests counts only if the release refuses the run without it.
    """
    before, after = judged.before, judged.after
    if judged.refuses(after):
        last = after
        if suggested and judged.changed is not None and _is_further(judged.changed, after):
            yield from suggested
            last = judged.changed
        if judged.refuses(last):
            yield _refusal(judged, last)
            return
        after = last
    if after.outcome in (Outcome.PLATFORM, Outcome.UNDECIDED):
        yield _unknown(judged, after)
    elif judged.refuses(before):
        yield Section.ARGUMENTS.finding(
            Level.NOTE, "the run", f"{judged.names[0]} does not take it ({before.message}), and {judged.names[1]} does"
        )
    if after is judged.after:
        yield from _read_as_another(before, after, suggested, judged.names)
    changed = {one.change.argument for one in suggested if one.change} if after is not judged.after else set()
    yield from _read_otherwise(before, after, changed, judged.names)
    yield from _server_defaults(before, after, judged.names)
    yield from _effects(before, after, frozenset() if judged.platform == "cpu" else judged.of_cpu)
    yield from _logged(before, after, judged.names)


def _is_further(one: Judgement, other: Judgement) -> bool:
    return (
        one.outcome is Outcome.ACCEPTED or _STAGES.index(one.stage) > _STAGES.index(other.stage) or one.message != other.message
    )


def _refusal(judged: Judged, found: Judgement) -> Finding:
    reason = _CHOICES.sub(lambda match: shortened(match[0], _LONGEST), found.message)
    message = f"{judged.names[1]} refuses it: {reason}"
    if judged.refuses(judged.before) and judged.before.message == found.message:
        message = f"neither {judged.names[0]} nor {judged.names[1]} takes it: {reason}"
    lines = (f"{found.place} ({found.stage})",) if found.place else ()
    return Section.ARGUMENTS.finding(Level.STOP, "the run", message, lines)


def _unknown(judged: Judged, found: Judgement) -> Finding:
    if found.outcome is Outcome.PLATFORM:
        message = f"the CPU platform, which stands in for another one here, does not take it: {found.message}"
    else:
        message = f"{judged.names[1]} cannot be asked further than its {found.stage}: {found.message}"
    return Section.ARGUMENTS.finding(Level.UNKNOWN, "values together", message, (found.place,) if found.place else ())


def _read_as_another(
    before: Judgement, after: Judgement, suggested: Sequence[Finding], names: tuple[str, str]
) -> Iterator[Finding]:
    """Options that the release takes for others: the beginning of a name is enough for argparse."""
    others = ", ".join(map(_option, sorted(after.typed.keys() - before.typed.keys())))
    for name in sorted(before.typed.keys() - after.typed.keys()) if after.typed else ():
        found = next((one for one in suggested if one.change and one.change.argument == name), None)
        message = f"{names[1]} takes it for {others or 'nothing'}"
        if found is not None:
            yield replace(found, message=f"{message}: it {found.message}")
        else:
            yield Section.ARGUMENTS.finding(Level.NOTE, _option(name), message)


def _read_otherwise(before: Judgement, after: Judgement, changed: set[str], names: tuple[str, str]) -> Iterator[Finding]:
    """Values that were typed and mean something else; not of arguments that a suggestion changes."""
    for name in sorted((before.typed.keys() & after.typed.keys()) - changed):
        was, now = before.typed[name], after.typed[name]
        if was != now:
            message = f"{names[0]} reads it as {shown(was, _LONGEST)}, and {names[1]} as {shown(now, _LONGEST)}"
            yield Section.ARGUMENTS.finding(Level.CHANGE, _option(name), message)


def _server_defaults(before: Judgement, after: Judgement, names: tuple[str, str]) -> Iterator[Finding]:
    """Options of the server that are left open and have another default: its clients see that."""
    for name in sorted(before.server.keys() & after.server.keys() - after.typed.keys()):
        was, now = before.server[name], after.server[name]
        if was == now:
            continue
        message = f"left open, and its default changes from {shown(was, _LONGEST)} to {shown(now, _LONGEST)}"
        if now is None:  # the choice is the server's
            yield Section.ARGUMENTS.finding(Level.NOTE, _option(name), message)
            continue
        keeps = Change(new=_option(name), value=was, remark=f"keeps what {names[0]} did")
        can_be_typed = was is not None and not isinstance(was, bool)
        yield Section.ARGUMENTS.finding(Level.CHANGE, _option(name), message, change=keeps if can_be_typed else None)


def _effects(before: Judgement, after: Judgement, of_another: Collection[str]) -> Iterator[Finding]:
    """Values of the engine's configuration that differ, in one finding, without those of another platform than the run's."""
    if not before.config or not after.config:
        return
    old, new = dict(_flat(before.config)), dict(_flat(after.config))
    lines = [
        f"{path}: {shown(old[path], _LONGEST)} → {shown(new[path], _LONGEST)}"
        for path in sorted((old.keys() & new.keys()) - set(of_another))
        if old[path] != new[path]
    ]
    if lines:
        message = "values that differ, as both releases make them on the CPU platform"
        yield Section.ARGUMENTS.finding(Level.NOTE, "the engine's configuration", message, lines)


def _logged(before: Judgement, after: Judgement, names: tuple[str, str]) -> Iterator[Finding]:
    """Options that do nothing or will go, as the release in question is the first to log."""
    for text in after.warnings:
        if text not in before.warnings and _DEPRECATED.search(text):
            yield Section.ARGUMENTS.finding(Level.NOTE, "deprecated", f"{names[1]} logs: {' '.join(text.split())}")


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, here)
        else:
            yield here, inner


def _option(destination: str) -> str:
    return f"--{destination.replace('_', '-')}"
