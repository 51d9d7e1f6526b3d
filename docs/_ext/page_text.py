"""The Markdown that the written pages share: a page, a table, a link."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quirks_core.declaration.quirk import Reference

#: The first line of every page.
_NOTE = "<!-- Written by `make docs`; edit the declarations, not this page. -->"
_THREAD = re.compile(r"(?<![\w`/\[.-])([\w.-]+/[\w.-]+)#(\d+)")


def page(title: str, *blocks: str) -> str:
    """Returns a page; empty blocks are left out."""
    return "\n\n".join([_NOTE, f"# {title}", *filter(None, blocks)]) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table."""
    cells = [headings, ["---"] * len(headings), *([text.replace("|", "\\|") for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def prose(text: str) -> str:
    """Makes Markdown of a docstring: threads become links, and double back-quotes single ones."""
    text = text.replace("``", "`")
    return _THREAD.sub(r"[\1#\2](https://github.com/\1/issues/\2)", text)


def plain(text: str) -> str:
    """Makes Markdown of a text without any: a regular expression among the facts is no footnote and no emphasis."""
    return re.sub(r"([\\\[\]^*_])", r"\\\1", text)


def link(reference: Reference) -> str:
    """A link that reads ``owner/repo#n`` where it is a GitHub thread."""
    thread = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", reference.url)
    return f"[{'#'.join(thread.groups()) if thread else reference.url}]({reference.url})"
