"""Makes foreign text harmless on its way to a terminal or a log: text of a checkpoint, a plugin or an engine.

Such text can hold escape sequences that move the cursor or open links, characters that reverse the direction of writing, and
newlines that forge lines of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Control characters other than tab and newline, invisible characters, bidirectional controls, and lone surrogates. The joiners
#: U+200C and U+200D stay: several scripts, and emoji, need them.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    r"""Returns a text with such characters written as escapes (``\x1b``); newlines and tabs stay."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    r"""Returns a text like `printable`, on one line: newlines and tabs become escapes, too (``\n``)."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def indented(text: str, spaces: int) -> str:
    """Returns a text like `printable`, whose second and later lines are indented, so that none looks like a line of ours."""
    return printable(text).replace("\n", "\n" + " " * spaces)


def listed(texts: Iterable[str], most: int = 8, separator: str = ", ") -> str:
    """Returns texts on one line; those beyond a number are counted: ``a, b and 12 more``."""
    found = list(texts)
    rest = f"{separator.rstrip(', ')} and {len(found) - most} more" if len(found) > most else ""
    return separator.join(found[:most]) + rest
