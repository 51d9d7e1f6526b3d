"""``quirks validate``: holds the quirks of a distribution against every law, without an engine.

Plugins are loaded in processes of their own (`quirks_core.plugins.isolated`), so whatever they do ends up as a finding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import distributions
from typing import Any

from packaging.utils import canonicalize_name

from quirks_core.base.errors import UsageError, nearest
from quirks_core.cli.command import Command, print_json
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.facts.packages import installed_version
from quirks_core.plugins.finder import PROJECT, Discovered, discover, find_circle, taken_ids
from quirks_core.plugins.isolated import Seen, look
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import ERROR, NOTE, supersedes
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.terminal import Screen, line


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
    checked = [item for item in everything if item.distribution in wanted]
    seen = look(checked)
    findings = list(_findings(everything, dict(zip(checked, seen, strict=True))))
    findings += [
        Finding(ERROR, "", f"it declares no quirks: add an entry point to the group {PROJECT!r}", section=name)
        for name in wanted
        if all(item.distribution != name for item in checked)
    ]
    rows = [
        _row(name, [(item, one) for item, one in zip(checked, seen, strict=True) if item.distribution == name])
        for name in wanted
    ]
    levels = {finding.level for finding in findings}
    if options.json:
        found = [
            {"level": one.level, "distribution": one.section, "quirk": one.subject, "message": one.message} for one in findings
        ]
        print_json({"distributions": rows, "findings": found})
    else:
        _show(rows, findings)
    return 3 if "broken" in levels else 1 if ERROR in levels else 0


def _wanted(name: str | None, plugins: Iterable[Discovered]) -> list[str]:
    """The names of the distributions to check, as their metadata spells them."""
    declaring = list(dict.fromkeys(item.distribution for item in plugins))
    if name is None:
        return [distribution for distribution in declaring if distribution != BUILT_IN]
    every = (one.metadata["Name"] for one in distributions())  # a folder that pip left half removed has no name
    installed = {canonicalize_name(other): other for other in (*filter(None, every), *declaring)}
    if (known := canonicalize_name(name)) in installed:
        return [installed[known]]
    raise UsageError(f"no distribution {name!r} is installed{nearest(name, declaring) or nearest(name, installed.values())}")


def _findings(everything: Iterable[Discovered], checked: Mapping[Discovered, Seen]) -> Iterator[Finding]:
    """Yields what is wrong with each plugin by itself, and beside all others."""
    others = Registry.load(item for item in everything if item not in checked).loaded
    taken = taken_ids([*((one, [one.quirk]) for one in others), *((item, seen.quirks) for item, seen in checked.items())])
    for item, seen in checked.items():
        for why in filter(None, (seen.error, taken.get(item))):
            message = item.problem or f"{item.entry_point.value} does not load: {why}"
            yield Finding("broken", item.name, message, section=item.distribution)
        for what in seen.impure:
            yield Finding(ERROR, item.name, f"loading and judging it {what}", section=item.distribution)
        yield from seen.problems
    replaced = {one.quirk.id: one.quirk.supersedes for one in others}
    replaced |= {quirk.id: quirk.supersedes for seen in checked.values() for quirk in seen.quirks}
    known, circle = {*(item.name for item in everything), *replaced}, find_circle(replaced)
    for item, quirk in ((item, quirk) for item, seen in checked.items() for quirk in seen.quirks):
        for problem in supersedes(quirk.id, quirk.supersedes, known):
            yield replace(problem, section=item.distribution)
        if quirk.id in circle:
            message = f"quirks supersede each other in a circle: {' → '.join(circle)}"
            yield Finding(ERROR, quirk.id, message, section=item.distribution)


def _row(name: str, checked: Sequence[tuple[Discovered, Seen]]) -> dict[str, Any]:
    return {
        "name": name,
        "version": installed_version(name) or "",
        "plugins": [item.name for item, _ in checked],
        "quirks": sorted(quirk.id for _, seen in checked for quirk in seen.quirks),
    }


def _show(rows: Iterable[Mapping[str, Any]], findings: Sequence[Finding]) -> None:
    screen = Screen()
    if not rows:
        screen.say("no third party's quirks are installed (quirks validate model-quirks checks the built-in ones)")
        return
    screen.findings(replace(one, subject=" ".join(filter(None, (one.section, one.subject)))) for one in findings)
    for row in rows:
        wrong = sum(finding.section == row["name"] and finding.level != NOTE for finding in findings)
        quirks = len(row["quirks"])
        screen.say(f"{line(row['name'])}: {quirks} quirk{'' if quirks == 1 else 's'}, {wrong or 'nothing'} to mend")


COMMAND = Command("check the quirks of a distribution without an engine", run_validate, add_arguments)
