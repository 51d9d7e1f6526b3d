"""Values that JSON can hold and give back, which is all that plans, facts and declarations are made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: Longer than any setting; such a value is a mistake, and neither a terminal nor a plan is the place for it.
_LONGEST = 100_000


def problem(value: object) -> str | None:
    """Returns why a value cannot be part of a declaration, a fact or a plan; None if it can. Tuples become lists."""
    try:
        if not _is_json(value):
            return "is not made of JSON values with texts as keys"
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, OverflowError) as error:
        return f"cannot be written as JSON ({error})"
    except RecursionError:
        return "is nested too deep"
    return None if len(text) <= _LONGEST else f"takes {len(text)} characters as JSON, more than {_LONGEST}"


def plain(value: Any) -> Any:
    """Returns a value as JSON gives it back: a copy, of Python's own types.

    Raises:
        ValueError: JSON cannot hold it.
    """
    if why := problem(value):
        raise ValueError(f"the value {why}")
    return json.loads(json.dumps(value))


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(item) for item in value)
    if isinstance(value, int):
        float(value)  # a reader in another language has no larger ones
    return value is None or isinstance(value, bool | int | float | str)


def canonical(value: Any, *, indent: int | None = None) -> str:
    """Returns JSON with sorted keys; what is indented is for terminals and programs, and ASCII."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, indent=indent, separators=separators, ensure_ascii=indent is not None, default=str)


def sha256(value: Any) -> str:
    """Returns the SHA-256 (hexadecimal) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
