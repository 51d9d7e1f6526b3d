"""Fingerprints of installed source: what a patch was written against, and what has changed since.

A fingerprint is the SHA-256 of a function's or class's source text, and may go on with a colon and six hexadecimal digits per
line. The line digests say which lines are new without our keeping a copy of somebody else's source.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable

from quirks_core.sources import attribute_source, module_source

#: Fingerprint of a target that does not exist although its module and class do: a patch may add it.
ABSENT = "absent"
#: Fingerprint of a target whose module or class does not exist, so that nothing could be added either.
HOMELESS = "homeless"

_LINE_DIGITS = 6


def fingerprint(target: str, *, lines: bool = False) -> str:
    """Returns what identifies a target's source.

    Args:
        target: ``package.module:Class.attribute``.
        lines: Add the digest of every line, so that drift can be shown line by line.

    Returns:
        The SHA-256 of the source text (hexadecimal), with ``:`` and the line digests if asked for; `ABSENT` or `HOMELESS`
        if there is no source.
    """
    source = attribute_source(target)
    if source is None:
        return ABSENT if _has_owner(target) else HOMELESS
    whole = hashlib.sha256(source.encode()).hexdigest()
    return f"{whole}:{''.join(_line_digests(source))}" if lines else whole


def same(one: str, other: str) -> bool:
    """Tells whether two fingerprints are those of one source; line digests do not count."""
    return one.partition(":")[0] == other.partition(":")[0]


def is_expected(target: str, expected: Iterable[str]) -> bool:
    """Tells whether the installed source of a target is one of those expected."""
    found = fingerprint(target)
    return any(same(found, known) for known in expected)


def drift(target: str, expected: Iterable[str]) -> str:
    """Shows what differs between a target's installed source and the nearest expected one.

    Returns:
        Lines like those of a unified diff: ``+`` and the text of a line that is new, ``-`` and a count of lines that are gone
        (their text is not known here). One sentence if there is nothing to compare.
    """
    source = attribute_source(target)
    known = [lines for text in expected if (lines := _split(text.partition(":")[2]))]
    if source is None:
        return f"{target} does not exist in the installed source"
    if not known:
        return "no line digests were kept, so that the changed lines cannot be shown (see quirks fingerprint)"
    found = _line_digests(source)
    nearest = max((difflib.SequenceMatcher(None, lines, found, autojunk=False) for lines in known), key=lambda m: m.ratio())
    return "\n".join(_shown(nearest.get_opcodes(), source.splitlines()))


def _shown(changes: Iterable[tuple[str, int, int, int, int]], installed: list[str]) -> Iterable[str]:
    for kind, old_from, old_to, new_from, new_to in changes:
        if kind == "equal":
            yield f"  ({new_to - new_from} lines as before)"
            continue
        if old_to > old_from:
            yield f"- (lines {old_from + 1} to {old_to} of the source it was written against)"
        yield from (f"+ {line}" for line in installed[new_from:new_to])


def _has_owner(target: str) -> bool:
    owner, dot, _ = target.rpartition(".")
    if ":" in owner and dot:
        return attribute_source(owner) is not None
    return module_source(target.partition(":")[0]) is not None


def _line_digests(source: str) -> list[str]:
    return [hashlib.sha256(line.strip().encode()).hexdigest()[:_LINE_DIGITS] for line in source.splitlines()]


def _split(digits: str) -> list[str]:
    return [digits[start : start + _LINE_DIGITS] for start in range(0, len(digits), _LINE_DIGITS)]
