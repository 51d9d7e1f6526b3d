"""Fingerprints of installed source: the source that a patch was written against, and the lines that changed since.

A fingerprint is the first digits of the SHA-256 of a function's or class's source text. Digests of its lines show which lines
are new, so no copy of the other project's source is needed; a distribution's data file stores them
(`quirks_core.declaration.data_file`).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator

from quirks_core.base.errors import UsageError
from quirks_core.source.sources import attribute_source, is_defined, module_source

#: Hexadecimal digits of a fingerprint, and of the digest of a line.
DIGITS = 12
_LINE_DIGITS = 6


def fingerprint(target: str) -> str:
    """Returns what identifies a target's installed source, `DIGITS` hexadecimal digits.

    Args:
        target: ``package.module:Class.attribute``.

    Raises:
        UsageError: The installed packages have no such name; the message says which part of it is missing.
    """
    if (found := find(target)) is None:
        raise UsageError(missing(target))
    return found


def find(target: str) -> str | None:
    """Returns a target's fingerprint; None if it does not exist."""
    source = attribute_source(target)
    return None if source is None else hashlib.sha256(source.encode()).hexdigest()[:DIGITS]


def missing(target: str) -> str:
    """Says which part of a target's name the installed packages do not have."""
    module, _, path = target.partition(":")
    if module_source(module) is None:
        return f"{target}: the installed packages have no module {module}"
    owner, dot, name = path.rpartition(".")
    if dot and attribute_source(f"{module}:{owner}") is None:
        return f"{target}: {module} has no {owner}"
    return f"{target}: {f'{module}:{owner}' if dot else module} has no {name} (inherited and imported names do not count)"


def has_owner(target: str) -> bool:
    """Tells whether the module or class of a target exists, so that an attribute can be added to it."""
    owner, dot, _ = target.rpartition(".")
    return is_defined(owner) if ":" in owner and dot else module_source(target.partition(":")[0]) is not None


def same(one: str, other: str) -> bool:
    """Tells whether two fingerprints identify the same source; only the first `DIGITS` digits are compared."""
    return one[:DIGITS] == other[:DIGITS]


def is_expected(target: str, expected: Iterable[str]) -> bool:
    """Tells whether the installed source of a target is one of those expected."""
    found = find(target)
    return found is not None and any(same(found, known) for known in expected)


def line_digests(target: str) -> str:
    """Returns the digests of a target's lines, one after the other; empty if it does not exist."""
    return "".join(map(_digest, (attribute_source(target) or "").splitlines()))


def drift(target: str, known: Iterable[str]) -> str:
    """Shows what differs between a target's installed source and the nearest known one.

    Args:
        target: The target.
        known: Line digests of the sources that are expected.

    Returns:
        Lines like those of a unified diff: ``+`` and the text of a line that is new, ``-`` and a count of lines that are gone
        (their text is not known here). One sentence if there is nothing to compare.
    """
    source = attribute_source(target)
    if source is None:
        return missing(target)
    expected = [_split(digests) for digests in known if digests]
    if not expected:
        return "no line digests were kept, so that the changed lines cannot be shown ('quirks fingerprint --write' keeps them)"
    lines = source.splitlines()
    found = [_digest(line) for line in lines]
    matchers = [difflib.SequenceMatcher(None, digests, found, autojunk=False) for digests in expected]
    return "\n".join(_shown(max(matchers, key=lambda matcher: matcher.ratio()).get_opcodes(), lines))


def _shown(changes: Iterable[tuple[str, int, int, int, int]], installed: list[str]) -> Iterator[str]:
    for kind, old_from, old_to, new_from, new_to in changes:
        if kind == "equal":
            yield f"  ({new_to - new_from} lines as before)"
            continue
        if old_to > old_from:
            yield f"- (lines {old_from + 1} to {old_to} of the source it was written against)"
        yield from (f"+ {line}" for line in installed[new_from:new_to])


def _digest(line: str) -> str:
    return hashlib.sha256(line.strip().encode()).hexdigest()[:_LINE_DIGITS]


def _split(digits: str) -> list[str]:
    return [digits[start : start + _LINE_DIGITS] for start in range(0, len(digits), _LINE_DIGITS)]
