"""What ``quirks upgrade`` prints: the page of a report, of the patches of a package, and of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.upgrade.catalogue import WORK, Catalogue, Item
from quirks_core.upgrade.finding import TITLES, Comparison, Level, Report, Section, Side, Verdict
from quirks_core.upgrade.patch_changes import PatchReport
from quirks_core.upgrade.recipes import RecipeReport

_OF_PATCHES = {Level.STOP: "cannot work", Level.UNKNOWN: "to be read", Level.NOTE: "noted"}
#: Lines of a difference that are printed; the rest is in JSON.
_MOST_LINES = 24


def page_of_run(report: Report) -> Page:
    """Returns what a release changes for a run."""
    what = f"{report.model} ({report.model_type or 'no model_type'}), purpose {report.purpose}"
    found = [(section, [one for one in report.findings if one.section == section]) for section in Section]
    return Page(
        head=f"{_sides(report)}: {what}",
        parts=[(TITLES[section], _gravest_first(items)) for section, items in found if items],
        verdict=Finding(report.verdict, "", _because(report)),
        notes=_notes(report.before, report.after),
        paste=list(_pasted(report)),
        rewritten=report.rewritten,
    )


def page_of_patches(report: PatchReport) -> Page:
    """Returns what a release means for the patches of a package."""
    counts = [(len(report.of(level)), text) for level, text in _OF_PATCHES.items()]
    parts = [f"{count} {text}" for count, text in counts if count]
    if kept := len(report.unchanged):
        parts.append("1 target is as before" if kept == 1 else f"{kept} targets are as before")
    found = [*_gravest_first(report.findings), *(Finding("as before", "", target) for target in report.unchanged)]
    return Page(
        head=f"{_sides(report)}: {report.patches} patches of vLLM in {report.path}",
        parts=[("", found)],
        verdict=Finding(report.verdict, "", f": {', '.join(parts)}"),
        notes=_notes(report.before, report.after),
        most=_MOST_LINES,
    )


def page_of_recipes(report: RecipeReport) -> Page:
    """Returns what a release does not know of recipes."""
    count = f"{len(report.concerned)} of {report.recipes} recipes"
    return Page(
        head=f"{report.after.name}: {count} in {report.path} set what it does not know",
        parts=[("", report.findings)] if report.findings else [],
        verdict=Finding(report.verdict, "", ""),
        notes=report.after.notes,
        most=_MOST_LINES,
    )


def page_of_runs(found: Mapping[str, Comparison], verdict: Verdict) -> Page:
    """Returns the verdicts on several runs."""
    sides = dict.fromkeys(_sides(one) for one in found.values())
    rows = [Finding(one.verdict, name, f"{_sides(one)}{_counted(one)}") for name, one in found.items()]
    return Page(head=f"{', '.join(sides)}: {len(rows)} runs", parts=[("", rows)], verdict=Finding(verdict, "", ""))


def _counted(found: Comparison) -> str:
    counts = [(len(found.of(level)), level) for level in (Level.STOP, Level.UNKNOWN, Level.CHANGE)]
    return "".join(f", {count} {level}" for count, level in counts if count)


def page_of_catalogue(found: Catalogue) -> Page:
    """Returns which quirks need work on a release."""
    items = sorted(found.items, key=lambda item: (item.kind not in WORK, item.quirk))
    return Page(
        head=f"{_sides(found)}: {len(found.work)} of {found.quirks} quirks need work",
        parts=[("", [_row(item) for item in items] or [Finding("ok", "", "nothing changes for any of them")])],
        notes=_notes(found.before, found.after),
        to_do=frozenset(WORK),
    )


def _sides(found: Comparison | Catalogue) -> str:
    return f"{found.before.name} → {found.after.name}"


def _notes(before: Side, after: Side) -> Sequence[str]:
    return (*before.notes, *after.notes)


def _because(report: Report) -> str:
    unknown = len(report.of(Level.UNKNOWN))
    count = f"{unknown} {'thing is' if unknown == 1 else 'things are'} not decided, see below" if unknown else ""
    match report.verdict:
        case Verdict.UNKNOWN:
            return f": {count}{', and with these changes:' if report.of(Level.CHANGE) else ''}"
        case Verdict.GO:
            return ""
        case verdict:
            return f"{', because' if verdict is Verdict.STOP else ''}{f' ({count})' if count else ''}:"


def _pasted(report: Report) -> Iterator[str]:
    """What stops the upgrade, and what is to be changed."""
    for item in report.of(Level.STOP):
        yield f"{item.subject}: {item.message}"
    # One line may be the change for several keys of one mapping.
    yield from dict.fromkeys(item.paste or f"{item.subject}: {item.message}" for item in report.of(Level.CHANGE))


def _gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    order: list[str] = list(Level)
    return sorted(findings, key=lambda item: order.index(item.level))


def _row(item: Item) -> Finding:
    right = f'when it is right there too: expects=(…, "{item.fingerprint}"), then --catalogue --write'
    lines = (*item.lines, right) if item.fingerprint else item.lines
    return Finding(item.kind, f"{item.quirk} ({item.distribution})", item.message, lines)
