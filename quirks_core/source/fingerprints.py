"""Fingerprints of source texts: the source that a patch was written against, and the lines that changed since.

A fingerprint is the first digits of the SHA-256 of a function's or class's source text. Digests of its lines show which lines
are new, so no copy of the other project's source is needed; a distribution's data file stores them
(`quirks_core.declaration.data_file`).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping

#: Hexadecimal digits of a fingerprint, and of the digest of a line.
DIGITS = 12
_LINE_DIGITS = 6


def fingerprint(source: str) -> str:
    """Returns the fingerprint of a source text, `DIGITS` hexadecimal digits."""
    return hashlib.sha256(source.encode()).hexdigest()[:DIGITS]


def same(one: str, other: str) -> bool:
    """Returns whether two fingerprints identify the same source; only the first `DIGITS` digits are compared."""
    return one[:DIGITS] == other[:DIGITS]


def line_digests(source: str) -> str:
    """Returns the digests of the lines of a source text, one after the other."""
    return "".join(map(_digest, source.splitlines()))


def drift(source: str, known: Mapping[str, str]) -> str:
    """Shows what differs between a source text and the nearest known one.

    Args:
        source: The text.
        known: The sources that are expected: line digests, each with the versions that have them.

    Returns:
        Lines like those of a unified diff: ``+`` and the text of a line that is new, ``-`` and a count of lines that are gone
        (their text is not known here). One sentence if there is nothing to compare.
    """
    known = {digests: versions for digests, versions in known.items() if digests}
    if not known:
        return "no line digests were kept, so that the changed lines cannot be shown ('quirks fingerprint --write' keeps them)"
    lines = source.splitlines()
    found = [_digest(line) for line in lines]
    matchers = {difflib.SequenceMatcher(None, _split(one), found, autojunk=False): of for one, of in known.items()}
    nearest = max(matchers, key=lambda matcher: matcher.ratio())
    return "\n".join(_shown(nearest.get_opcodes(), lines, matchers[nearest]))


def _shown(changes: Iterable[tuple[str, int, int, int, int]], installed: list[str], versions: str) -> Iterator[str]:
    for kind, old_from, old_to, new_from, new_to in changes:
        if kind == "equal":
            yield f"  ({new_to - new_from} lines as before)"
            continue
        if old_to > old_from:
            where = f"of {versions}" if versions else "it was written against"
            yield f"- (lines {old_from + 1} to {old_to} of the source {where})"
        yield from (f"+ {line}" for line in installed[new_from:new_to])


def _digest(line: str) -> str:
    return hashlib.sha256(line.strip().encode()).hexdigest()[:_LINE_DIGITS]


def _split(digits: str) -> list[str]:
    return [digits[start : start + _LINE_DIGITS] for start in range(0, len(digits), _LINE_DIGITS)]
