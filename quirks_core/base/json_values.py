"""Values that JSON can hold and give back, which is all that plans, facts and declarations are made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

#: Deeper or longer than any setting; such a value is a mistake, and neither a terminal nor a plan is the place for it.
DEEPEST = 50
_LONGEST = 100_000
_SCALARS = (str, int, float, type(None))


def problem(value: object) -> str | None:
    """Returns why a value cannot be part of a declaration, a fact or a plan; None if it can. Tuples become lists."""
    try:
        if not _is_json(value, DEEPEST):
            return "is not made of JSON values with texts as keys"
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, OverflowError) as error:
        return f"cannot be written as JSON ({error})"
    except RecursionError:
        return f"is nested deeper than {DEEPEST} levels"
    return None if len(text) <= _LONGEST else f"takes {len(text)} characters as JSON, more than {_LONGEST}"


def is_too_deep(value: object) -> bool:
    """Returns whether a value is nested deeper than `DEEPEST` levels; one that holds itself is."""
    level = [value]
    for _ in range(DEEPEST):
        # By identity: an alias in YAML can stand for the same list a million times. Scalars hold nothing, and are many.
        inner = {id(item): item for outer in level for item in _items(outer) if not isinstance(item, _SCALARS)}
        level = list(inner.values())
    return any(True for outer in level for _ in _items(outer))


def _items(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()


def plain(value: Any) -> Any:
    """Returns a value as JSON gives it back: a copy, of Python's own types.

    Raises:
        ValueError: JSON cannot hold it.
    """
    if why := problem(value):
        raise ValueError(f"the value {why}")
    return json.loads(json.dumps(value))


def _is_json(value: object, depth: int) -> bool:
    if depth < 0:
        raise RecursionError
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item, depth - 1) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(item, depth - 1) for item in value)
    if isinstance(value, int):
        float(value)  # a reader in another language has no larger ones
    return value is None or isinstance(value, bool | int | float | str)


def canonical(value: Any, *, indent: int | None = None) -> str:
    """Returns JSON with sorted keys."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, indent=indent, separators=separators, ensure_ascii=False, default=str)


def sha256(value: Any) -> str:
    """Returns the SHA-256 (hexadecimal) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
