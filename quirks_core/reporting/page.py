"""A report of findings in parts: the record, and its form in Markdown; `quirks_core.reporting.terminal` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quirks_core.base.text import one_line
from quirks_core.reporting.finding import Finding


@dataclass(frozen=True, slots=True)
class Page:
    """What a report says, in order.

    Attributes:
        head: What it is about.
        parts: Findings by title; a part with an empty title has none.
        verdict: What follows from the findings, as one of them; None if nothing does.
        notes: What is to be known first.
        paste: What is to be done, ready to be pasted.
        rewritten: What was looked at, with all of that done; shown in Markdown alone.
        most: Lines of one finding that are shown; all if None.
        to_do: Levels of what somebody has to do, with a box in Markdown.
        details: Pages of what this one sums up, by title; Markdown folds them.
    """

    head: str
    parts: Sequence[tuple[str, Sequence[Finding]]]
    verdict: Finding | None = None
    notes: Sequence[str] = ()
    paste: Sequence[str] = ()
    rewritten: str = ""
    most: int | None = None
    to_do: frozenset[str] = frozenset()
    details: Mapping[str, Page] = field(default_factory=dict)


def markdown(page: Page) -> Iterator[str]:
    """Yields the lines of a page in Markdown; what was rewritten comes first."""
    if page.rewritten:
        yield from (*_block(page.rewritten.splitlines(), "json" if page.rewritten.startswith("{") else "sh"), "")
    yield from (f"## {_plain(page.head)}", "")
    yield from (f"Note: {_plain(note)}." for note in page.notes)
    if page.verdict is not None:
        yield from ("", f"**{_plain(f'{page.verdict.level}{page.verdict.message}')}**")
    if page.paste:
        yield from ("", *_block(page.paste, "text"))
    for title, found in page.parts:
        yield from ("", *([f"### {_plain(title.capitalize())}", ""] if title else []))
        for one in found:
            box = "[ ] " if one.level in page.to_do else ""
            yield f"- {box}**{one.level}** {f'{_code(one.subject)}: ' if one.subject else ''}{_plain(one.message)}"
            if one.lines:
                yield from (f"  {text}" for text in _block(shortened(one, page.most), "diff"))
    for title, inner in page.details.items():
        tag = one_line(title).replace("&", "&amp;").replace("<", "&lt;").replace("@", "@\u200b")
        yield from ("", f"<details><summary>{tag}</summary>", "", *markdown(inner), "", "</details>")


def shortened(found: Finding, most: int | None) -> Iterator[str]:
    """Yields the lines that show a finding, and how many are left out."""
    yield from found.lines[:most]
    if most is not None and len(found.lines) > most:
        yield f"… {len(found.lines) - most} more lines (--json has all)"


def _block(lines: Iterable[str], language: str) -> Iterator[str]:
    yield f"```{language}"
    yield from (one_line(text).replace("```", "'''") for text in lines)
    yield "```"


def _code(text: str) -> str:
    return f"`{one_line(text).replace('`', chr(39))}`"


def _plain(text: str) -> str:
    """Returns foreign text so that nothing of it becomes a tag, a link, a mention or emphasis."""
    shown = one_line(text)
    for sign in "\\`*_[]<>":
        shown = shown.replace(sign, f"\\{sign}")
    return shown.replace("@", "@\u200b")
