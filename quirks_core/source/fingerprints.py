"""Fingerprints of source texts: the source that a patch was written against.

A fingerprint is the first digits of the SHA-256 of a function's or class's source text, so no copy of the other project's
source is needed.
"""

from __future__ import annotations

import hashlib

#: Hexadecimal digits of a fingerprint.
DIGITS = 12


def fingerprint(source: str) -> str:
    """Returns the fingerprint of a source text, `DIGITS` hexadecimal digits."""
    return hashlib.sha256(source.encode()).hexdigest()[:DIGITS]


def same(one: str, other: str) -> bool:
    """Returns whether two fingerprints identify the same source; only the first `DIGITS` digits are compared."""
    return one[:DIGITS] == other[:DIGITS]
