"""Plain values: those that JSON can hold and give back, which is all that plans and facts are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def is_plain(value: object) -> bool:
    """Tells whether JSON can hold a value and give the same back, but for tuples, which become lists."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        if isinstance(value, int):
            float(value)
        return _has_text_keys(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def plain(value: Any) -> Any:
    """Returns a value as JSON gives it back: a copy, of Python's own types.

    Raises:
        ValueError: JSON cannot hold it.
    """
    if not is_plain(value):
        raise ValueError("JSON cannot hold the value")
    return json.loads(json.dumps(value))


def _has_text_keys(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_text_keys(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_text_keys, value))
