"""Values that JSON can hold and give back, which is all that plans, facts and declarations are made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: The version of the documents in `quirks_core.schemas`. It grows if a key goes or means something else; new keys leave it.
SCHEMA = 1


def problem(value: object) -> str | None:
    """Returns why a value cannot be part of a declaration, a fact or a plan; None if it can. Tuples become lists."""
    try:
        if not _is_json(value):
            return "is not made of JSON values with texts as keys"
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        return f"cannot be written as JSON ({error})"
    except RecursionError:
        return "is nested too deep"
    return None


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
    return value is None or isinstance(value, bool | int | float | str)


def canonical(value: Any, *, indent: int | None = None) -> str:
    """Returns JSON with sorted keys; what is indented is for terminals and programs, and ASCII."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, indent=indent, separators=separators, ensure_ascii=indent is not None, default=str)


def sha256(value: Any) -> str:
    """Returns the SHA-256 (hexadecimal) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
