"""The console of all commands: foreign text cannot steer it, lines wrap between words, and a pipe gets them unwrapped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from types import MappingProxyType

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from quirks_core.base.text import indented, one_line, printable
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page, shortened

#: Columns of what is no terminal: nothing wraps there, so that `grep` finds the text of a line.
_UNWRAPPED = 1_000_000
#: A bracket with the backslashes before it; the second group is there if rich would read a tag.
_BRACKET = re.compile(r"(\\*)\[(?=([a-z#/@][^\[]*?\])?)")
#: Markup that shows nothing.
_NOTHING = "[none][/none]"
#: Columns that a text needs beside a name; with fewer it goes below.
_BESIDE = 32
_NO_HEADINGS: Mapping[str, str] = MappingProxyType({})
#: By level; others are yellow.
_COLOURS = {
    **dict.fromkeys(("ok", "fine", "go", "in force", "in force, too", "active", "already_set", "features"), "green"),
    **dict.fromkeys(("note", "dormant", "superseded"), "cyan"),
    **dict.fromkeys(("error", "broken", "expired", "refused", "stop"), "bold red"),
    "unknown": "magenta",
}


def line(value: object) -> str:
    """Returns foreign text as markup that shows it as it is, on one line."""
    return _as_markup(one_line(str(value)))


def lines(value: object, spaces: int = 2) -> str:
    """Returns foreign text as markup that shows it as it is; its second and later lines are indented."""
    return _as_markup(indented(str(value), spaces))


def _as_markup(text: str) -> str:
    """Escapes a text, also where a backslash is before a bracket or at its end, which `rich.markup.escape` gets wrong."""
    text = _BRACKET.sub(lambda found: "\\" * (len(found[1]) * (2 if found[2] else 1) + 1) + "[", text)
    if ending := len(text) - len(text.rstrip("\\")):
        text += "\\" * ending + _NOTHING
    return text


class Screen(Console):
    """A console for text that is not ours.

    It escapes whatever could steer the terminal (`quirks_core.base.text`), makes no emoji of ``:x:``, and with NO_COLOR uses
    neither bold nor dim text. It leaves a closed pipe to `main`; rich would end the program with 1, which means findings.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        is_narrow = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
        super().__init__(
            stderr=stderr,
            color_system=None if os.environ.get("NO_COLOR") else "auto",
            width=None if is_narrow else _UNWRAPPED,
            emoji=False,
            highlight=False,
        )

    def on_broken_pipe(self) -> None:
        """Lets the error through that rich is handling."""
        raise

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders anything, also what did not go through `line`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def say(self, text: str, *, indent: int = 0, hang: int = 2) -> None:
        """Prints markup, wrapped between words: `hang` columns more are in front of the lines that wrapping makes.

        Put what is not ours through `line` or `lines`.
        """
        for part in self.render_str(text).split(allow_blank=True):
            for number, piece in enumerate(_wrapped(part, self.width - indent - hang)):
                self._put(" " * (indent + hang * (number > 0)), piece)

    def findings(
        self, found: Iterable[Finding], headings: Mapping[str, str] = _NO_HEADINGS, *, indent: int = 0, most: int | None = None
    ) -> None:
        """Prints findings, each with its level in front, and the lines that show it below, `most` of them.

        Those of one level share a heading if `headings` has what follows the level in it.
        """
        for level, group in groupby(found, key=lambda one: one.level):
            name = f"[{_COLOURS.get(level, 'yellow')}]{line(level.replace('_', ' '))}[/]"
            if level in headings:
                self.say(f"{name}{line(headings[level])}", indent=indent)
                rows = [
                    (f"[bold]{line(one.subject)}[/]", "\n".join([lines(one.message, 0), *_below(one, most)])) for one in group
                ]
                self.entries(rows, indent=indent + 2)
                continue
            for one in group:
                subject = f"[bold]{line(one.subject)}[/]: " if one.subject else ""
                self.say(f"{name}: {subject}{lines(one.message, 4)}", indent=indent, hang=4)
                for text in _below(one, most):
                    self.say(text, indent=indent + 4)

    def page(self, page: Page) -> None:
        """Prints a report, what it sums up first."""
        for inner in page.details.values():
            self.page(inner)
            self.print()
        self.say(f"[bold]{line(page.head)}[/]")
        self.findings(Finding("note", "", note) for note in page.notes)
        if page.verdict is not None:
            self.say(f"[{_COLOURS.get(page.verdict.level, 'yellow')}]{line(page.verdict.level)}{line(page.verdict.message)}[/]")
        for text in page.paste:
            self.say(line(text), indent=2)
        for title, found in page.parts:
            self.say(f"\n[bold]{line(title)}[/]" if title else "")
            self.findings(found, indent=2, most=page.most)

    def entries(self, rows: Sequence[tuple[str, str]], *, indent: int = 2) -> None:
        """Prints names with a text beside each, or below it where the terminal is narrow; both are markup."""
        names = [self.render_str(name) for name, _ in rows]
        beside = indent + max((name.cell_len for name in names), default=0) + 2
        is_wide = self.width - beside >= _BESIDE
        for name, (_, text) in zip(names, rows, strict=True):
            if not is_wide:
                self._put(" " * indent, name)
                self.say(text, indent=indent + 2, hang=0)
                continue
            parts = self.render_str(text).split(allow_blank=True)
            first, *others = [piece for part in parts for piece in _wrapped(part, self.width - beside)]
            self._put(" " * indent, name, " " * (beside - indent - name.cell_len), first)
            for piece in others:
                self._put(" " * beside, piece)

    def grid(self, corner: str, headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Prints a table of short cells of markup; columns for which there is no room follow below, with the names again."""
        cells = [[self.render_str(cell) for cell in (name, *others)] for name, others in ((corner, headings), *rows)]
        widths = [max(cell.cell_len for cell in column) + 2 for column in zip(*cells, strict=True)]
        first = 1
        while first == 1 or first < len(widths):
            last = first + 1
            while last < len(widths) and widths[0] + sum(widths[first : last + 1]) - 2 <= self.width:
                last += 1
            for number, row in enumerate(cells):
                places = [0, *range(first, min(last, len(widths)))]
                padded = [part for place in places for part in (row[place], " " * (widths[place] - row[place].cell_len))]
                self._put(Text.assemble(*padded, style="" if number else "bold"))
            self.print()
            first = last

    def _put(self, *parts: str | Text) -> None:
        whole = Text.assemble(*parts)
        whole.rstrip()
        self.print(whole, soft_wrap=True)


def _below(found: Finding, most: int | None) -> Iterator[str]:
    """Yields the lines that show a finding, as markup."""
    return (f"[dim]{line(text)}[/]" for text in shortened(found, most))


def _wrapped(text: Text, width: int) -> Sequence[Text]:
    """Breaks a line between words; a word that is too long stays whole, so that a path can be copied."""
    words = list(re.finditer(r"\S+", text.plain))
    breaks, start = [], 0
    for before, word in pairwise(words):
        if cell_len(text.plain[start : word.end()]) > width and before.end() > start:
            start = word.start()
            breaks.append(start)
    pieces = text.divide(breaks)
    for piece in pieces:
        piece.rstrip()
    return list(pieces)
