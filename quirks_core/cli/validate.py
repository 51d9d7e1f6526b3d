"""``quirks validate``: holds the quirks of a distribution against every law, without an engine.

Plugins are loaded in processes of their own (`quirks_core.plugins.isolated`), so whatever they do ends up as a finding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distributions, version

from packaging.utils import canonicalize_name

from quirks_core.base.errors import UsageError, nearest
from quirks_core.cli.command import Command
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.declaration.quirk import Quirk
from quirks_core.plugins.finder import PROJECT, Discovered, discover, find_circle
from quirks_core.plugins.isolated import Seen, SeenQuirk, look
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import Level, Problem, supersedes
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.terminal import Screen, line

_Plugins = Sequence[tuple[Discovered, Seen]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the distribution."""
    parser.add_argument("distribution", metavar="DIST", nargs="?", help="what to check; every third party's quirks if left out")


def run_validate(options: argparse.Namespace) -> int:
    """Checks quirks; 3 if a plugin does not load, 1 if something else has to be mended, 0 if there are notes at most.

    Raises:
        UsageError: There is no such distribution.
    """
    everything = discover()
    wanted = _wanted(options.distribution, everything)
    own = [item for item in everything if item.distribution in wanted]
    checked = list(zip(own, look(own), strict=True))
    together = _AllPlugins.of(checked, Registry.load(item for item in everything if item.distribution not in wanted))
    findings = [finding for item, seen in checked for finding in _findings(item, seen, together)]
    findings += [
        Finding(Level.ERROR, "", f"it declares no quirks: add an entry point to the group {PROJECT!r}", section=name)
        for name in wanted
        if all(item.distribution != name for item, _ in checked)
    ]
    levels = {finding.level for finding in findings}
    if options.json:
        rows = [
            {"level": one.level, "distribution": one.section, "quirk": one.subject, "message": one.message} for one in findings
        ]
        found = {"distributions": [_row(name, checked) for name in wanted], "findings": rows}
        print(json.dumps(found, indent=2, sort_keys=True))
    else:
        _show(wanted, checked, findings)
    return 3 if "broken" in levels else 1 if Level.ERROR in levels else 0


def _wanted(name: str | None, plugins: Iterable[Discovered]) -> list[str]:
    """The names of the distributions to check, as their metadata spells them."""
    declaring = list(dict.fromkeys(item.distribution for item in plugins))
    if name is None:
        return [distribution for distribution in declaring if distribution != BUILT_IN]
    installed = {canonicalize_name(other): other for other in (*_installed(), *declaring)}
    if (known := canonicalize_name(name)) in installed:
        return [installed[known]]
    raise UsageError(f"no distribution {name!r} is installed{nearest(name, declaring) or nearest(name, installed.values())}")


def _installed() -> Iterator[str]:
    for distribution in distributions():
        if name := distribution.metadata["Name"]:  # a folder that pip left half removed has none
            yield name


def _findings(item: Discovered, seen: Seen, together: _AllPlugins) -> Iterator[Finding]:
    if seen.error:
        message = item.problem or f"{item.entry_point.value} does not load: {seen.error}"
        yield Finding("broken", item.name, message, section=item.distribution)
    if seen.heavy:
        names = ", ".join(seen.heavy)
        message = f"importing and judging it imports {names}: import that inside the function that needs it"
        yield Finding(Level.ERROR, item.name, message, section=item.distribution)
    if seen.environment:
        message = f"importing it changes {', '.join(seen.environment)}: a quirk asks for an env.* slot instead"
        yield Finding(Level.ERROR, item.name, message, section=item.distribution)
    for problem in _problems(item, seen, together):
        yield Finding(problem.level, problem.quirk, problem.message, section=item.distribution)


@dataclass(frozen=True, slots=True)
class _AllPlugins:
    """Problems that show only among the quirks of all plugins.

    Attributes:
        owners: By id, whoever declares it.
        known: Every id that can be superseded.
        circle: Ids that supersede each other in a circle; empty if none do.
    """

    owners: Mapping[str, Sequence[str]]
    known: frozenset[str]
    circle: Sequence[str]

    @classmethod
    def of(cls, checked: _Plugins, others: Registry) -> _AllPlugins:
        """Gathers it."""
        found: list[tuple[SeenQuirk | Quirk, str]] = [
            (quirk, f"{item.distribution} {item.version} ({quirk.location})") for item, seen in checked for quirk in seen.quirks
        ]
        found += [(item.quirk, f"{item.distribution} {item.version} ({item.quirk.location})") for item in others.loaded]
        owners: dict[str, list[str]] = {}
        for quirk, who in found:
            owners.setdefault(quirk.id, []).append(who)
        # What does not load can still be superseded.
        known = {*owners, *(item.name for item, seen in checked if seen.error), *(row.plugin.name for row in others.broken)}
        return cls(owners, frozenset(known), find_circle({quirk.id: quirk.supersedes for quirk, _ in found}))


def _problems(item: Discovered, seen: Seen, together: _AllPlugins) -> Iterator[Problem]:
    """Problems of each quirk by the laws, and those between ids of different plugins."""
    for quirk in seen.quirks:
        yield from quirk.problems
        yield from supersedes(quirk.id, quirk.supersedes, together.known)
        if quirk.id in together.circle:
            yield Problem(Level.ERROR, quirk.id, f"quirks supersede each other in a circle: {' → '.join(together.circle)}")
        owners = together.owners[quirk.id]
        if len(owners) > 1:
            name = f"{canonicalize_name(item.distribution)}/{quirk.id.rpartition('/')[2]}"
            todo = "the other one must be renamed" if name == quirk.id else f"rename it, for example {name}"
            message = (
                f"{len(owners)} plugins declare this id, and only a built-in keeps it then: {' and '.join(owners)}; {todo}"
            )
            yield Problem(Level.ERROR, quirk.id, message)


def _row(name: str, checked: _Plugins) -> dict[str, object]:
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = ""
    own = [(item, seen) for item, seen in checked if item.distribution == name]
    return {
        "name": name,
        "version": installed,
        "plugins": [item.name for item, _ in own],
        "quirks": sorted(quirk.id for _, seen in own for quirk in seen.quirks),
    }


def _show(wanted: Sequence[str], checked: _Plugins, findings: Sequence[Finding]) -> None:
    screen = Screen()
    if not wanted:
        screen.say("no third party's quirks are installed (quirks validate model-quirks checks the built-in ones)")
        return
    screen.findings(replace(one, subject=" ".join(filter(None, (one.section, one.subject)))) for one in findings)
    for name in wanted:
        own = [seen for item, seen in checked if item.distribution == name]
        wrong = sum(finding.section == name and finding.level != Level.NOTE for finding in findings)
        quirks = sum(len(seen.quirks) for seen in own)
        screen.say(f"{line(name)}: {quirks} quirk{'' if quirks == 1 else 's'}, {wrong or 'nothing'} to mend")


COMMAND = Command("check the quirks of a distribution without an engine", run_validate, add_arguments)
