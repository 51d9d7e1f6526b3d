"""What ``quirks upgrade`` prints: reports and the catalogue, for a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quirks_core.base.text import one_line
from quirks_core.reporting.terminal import Screen, line, lines
from quirks_core.upgrade.catalogue import WORK, Catalogue
from quirks_core.upgrade.finding import TITLES, Finding, Level, Report, Section, Verdict
from quirks_core.upgrade.patch_changes import PatchReport

_COLOURS = {Level.STOP: "bold red", Level.CHANGE: "yellow", Level.UNKNOWN: "magenta", Level.NOTE: "cyan"}
_OF_VERDICTS = {Verdict.GO: "green", Verdict.CHANGES: "yellow", Verdict.STOP: "bold red", Verdict.UNKNOWN: "magenta"}
_OF_PATCHES = {Level.STOP: "cannot work", Level.UNKNOWN: "to be read", Level.NOTE: "noted"}
#: Lines of a difference that are printed; the rest is in JSON.
_MOST_LINES = 24


def show(screen: Screen, report: Report) -> None:
    """Prints a report."""
    screen.say(f"[bold]{_head(report)}[/]")
    for note in (*report.before.notes, *report.after.notes):
        screen.say(f"note: {line(note)}")
    screen.say(f"[{_OF_VERDICTS[report.verdict]}]{_verdict(report)}[/]")
    for text in _pasted(report):
        screen.say(line(text), indent=2)
    for section, findings in _sections(report):
        screen.say(f"\n[bold]{TITLES[section]}[/]")
        _show_findings(screen, findings)


def _show_findings(screen: Screen, findings: Iterable[Finding], most: int | None = None) -> None:
    for item in findings:
        screen.say(f"[{_COLOURS[item.level]}]{item.level}[/] {line(item.subject)}: {lines(item.message)}", indent=2)
        for text in _first_lines(item, most):
            screen.say(f"[dim]{line(text)}[/]", indent=6)


def _first_lines(item: Finding, most: int | None) -> Iterator[str]:
    yield from item.lines[:most]
    if most is not None and len(item.lines) > most:
        yield f"… {len(item.lines) - most} more lines (--json has all)"


def _head(report: Report) -> str:
    what = f"{report.model} ({report.model_type or 'no model_type'}), purpose {report.purpose}"
    return f"{line(report.before.name)} → {line(report.after.name)}: {line(what)}"


def _verdict(report: Report) -> str:
    unknown = len(report.of(Level.UNKNOWN))
    count = f"{unknown} {'thing is' if unknown == 1 else 'things are'} not decided, see below" if unknown else ""
    match report.verdict:
        case Verdict.UNKNOWN:
            return f"{report.verdict}: {count}{', and with these changes:' if report.of(Level.CHANGE) else ''}"
        case Verdict.GO:
            return report.verdict
        case verdict:
            because = ", because" if verdict is Verdict.STOP else ""
            return f"{verdict}{because}{f' ({count})' if count else ''}:"


def _pasted(report: Report) -> Iterator[str]:
    """What stops the upgrade, and what is to be changed."""
    for item in report.of(Level.STOP):
        yield f"{item.subject}: {item.message}"
    # One line may be the change for several keys of one mapping.
    yield from dict.fromkeys(item.paste or f"{item.subject}: {item.message}" for item in report.of(Level.CHANGE))


def _sections(report: Report) -> Iterator[tuple[Section, list[Finding]]]:
    for section in Section:
        if found := [item for item in report.findings if item.section is section]:
            yield section, _gravest_first(found)


def markdown(report: Report) -> Iterator[str]:
    """Yields the lines of a report in Markdown; the run as it is to be written comes first."""
    if report.rewritten:
        yield f"```{'json' if report.rewritten.startswith('{') else 'sh'}"
        yield from (one_line(text).replace("```", "'''") if text.strip() else "" for text in report.rewritten.splitlines())
        yield from ("```", "")
    yield f"## vLLM: {_code(report.before.name)} → {_code(report.after.name)}"
    yield ""
    yield f"{_code(report.model)} ({_code(report.model_type or 'no model_type')}), purpose {report.purpose}."
    for note in (*report.before.notes, *report.after.notes):
        yield f"Note: {plain(note)}."
    yield ""
    yield f"**{_verdict(report)}**"
    if pasted := list(_pasted(report)):
        yield ""
        yield "```text"
        yield from (one_line(text).replace("```", "'''") for text in pasted)
        yield "```"
    for section, findings in _sections(report):
        yield ""
        yield f"### {TITLES[section].capitalize()}"
        yield ""
        yield from _findings_markdown(findings)


def _findings_markdown(findings: Iterable[Finding]) -> Iterator[str]:
    for item in findings:
        yield f"- **{item.level}** {_code(item.subject)}: {plain(item.message)}"
        yield from (f"  - {_code(text)}" for text in item.lines)


def _patches_head(report: PatchReport) -> str:
    return f"{report.before.name} → {report.after.name}: {report.patches} patches of vLLM in {report.path}"


def _patches_verdict(report: PatchReport) -> str:
    counts = [(len(report.of(level)), text) for level, text in _OF_PATCHES.items()]
    parts = [f"{count} {text}" for count, text in counts if count]
    if kept := len(report.unchanged):
        parts.append("1 target is as before" if kept == 1 else f"{kept} targets are as before")
    return f"{report.verdict}: {', '.join(parts)}"


def show_patches(screen: Screen, report: PatchReport) -> None:
    """Prints what a release means for the patches of a package."""
    screen.say(f"[bold]{line(_patches_head(report))}[/]")
    for note in (*report.before.notes, *report.after.notes):
        screen.say(f"note: {line(note)}")
    screen.say(f"[{_OF_VERDICTS[report.verdict]}]{_patches_verdict(report)}[/]\n")
    _show_findings(screen, _gravest_first(report.findings), _MOST_LINES)
    for target in report.unchanged:
        screen.say(f"[dim]as before {line(target)}[/]", indent=2)


def patches_markdown(report: PatchReport) -> Iterator[str]:
    """Yields the same in Markdown, with the lines of each difference in a block."""
    yield f"**{plain(_patches_verdict(report))}**"
    yield ""
    yield f"## {plain(_patches_head(report))}"
    for note in (*report.before.notes, *report.after.notes):
        yield f"Note: {plain(note)}."
    yield ""
    for item in _gravest_first(report.findings):
        yield f"- **{item.level}** {_code(item.subject)}: {plain(item.message)}"
        if item.lines:
            yield from ("", "  ```diff")
            yield from (f"  {one_line(text).replace('```', chr(39) * 3)}" for text in _first_lines(item, _MOST_LINES))
            yield from ("  ```", "")
    yield from (f"- as before {_code(target)}" for target in report.unchanged)


def _gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Level)
    return sorted(findings, key=lambda item: order.index(item.level))


def _code(text: str) -> str:
    return f"`{one_line(text).replace('`', chr(39))}`"


def plain(text: str) -> str:
    """Foreign text in Markdown: nothing of it becomes a tag, a link, a mention or emphasis."""
    shown = one_line(text)
    for sign in "\\`*_[]<>":
        shown = shown.replace(sign, f"\\{sign}")
    return shown.replace("@", "@\u200b")


def _catalogue_head(found: Catalogue) -> str:
    return f"{found.before.name} → {found.after.name}: {len(found.work)} of {found.quirks} quirks need work"


def show_catalogue(screen: Screen, found: Catalogue) -> None:
    """Prints which quirks need work on a release."""
    screen.say(f"[bold]{line(_catalogue_head(found))}[/]")
    for note in (*found.before.notes, *found.after.notes):
        screen.say(f"note: {line(note)}")
    for item in sorted(found.items, key=lambda item: (item.kind not in WORK, item.quirk)):
        colour = "yellow" if item.kind in WORK else "cyan"
        screen.say(f"[{colour}]{item.kind}[/] {line(item.quirk)} ({line(item.distribution)}): {lines(item.message)}", indent=2)
        for text in _catalogue_lines(item.lines, item.fingerprint):
            screen.say(f"[dim]{line(text)}[/]", indent=6)


def _catalogue_lines(changed: Sequence[str], fingerprint: str) -> Iterable[str]:
    yield from changed
    if fingerprint:
        yield f'when it is right there too: expects=(…, "{fingerprint}"), then --catalogue --write'


def catalogue_markdown(found: Catalogue) -> Iterator[str]:
    """Yields the same in Markdown, with a box for each thing to do."""
    yield f"## {plain(_catalogue_head(found))}"
    yield ""
    for item in sorted(found.items, key=lambda item: (item.kind not in WORK, item.quirk)):
        box = "- [ ]" if item.kind in WORK else "-"
        yield f"{box} **{item.kind}** {_code(item.quirk)} ({plain(item.distribution)}): {plain(item.message)}"
        yield from (f"  - {_code(text)}" for text in _catalogue_lines(item.lines, item.fingerprint))
    if not found.items:
        yield "Nothing changes for any of them."
