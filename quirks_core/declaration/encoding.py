"""Quirks as JSON values: a declaration is data, so it can be compared and digested.

A function is represented by its name (``package.module:function``) and the digest of its source.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from quirks_core.base.errors import DeclarationError, shown
from quirks_core.base.json_values import sha256
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.quirk import Quirk
from quirks_core.source.vllm_source import INSTALLED


def encode(value: Any) -> Any:
    """Encodes a quirk, or a part of one, as JSON values, without the file and line of the declaration.

    Raises:
        DeclarationError: Something in it is neither data nor a function.
    """
    if value is None or isinstance(value, bool | int | float) or type(value) is str:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple | set | frozenset):
        members = [encode(member) for member in value]
        return sorted(members, key=repr) if isinstance(value, set | frozenset) else members
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value) if field.compare}
        kind = type(value)
        is_ours = kind.__module__.startswith("quirks_core.")
        return {"$type": kind.__name__ if is_ours else f"{kind.__module__}:{kind.__qualname__}", **fields}
    if callable(value):
        return {"$function": _name(value), "sha256": _function_digest(value)}
    raise DeclarationError(f"{shown(value)} in a declaration is not data")


def digest(declared: Quirk) -> str:
    """Returns the SHA-256 of a declaration and of the functions that it names, without kind and examples: they change no run.

    Raises:
        DeclarationError: Something in it is neither data nor a function.
    """
    code = [INSTALLED.fingerprint(item.source) for item in declared.adjustments if isinstance(item, Patch)]
    parts = {name: part for name, part in encode(declared).items() if name not in ("examples", "kind")}
    return sha256([parts, code])


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _function_digest(function: Callable[..., Any]) -> str:
    try:
        return sha256(inspect.getsource(function))
    except (OSError, TypeError):
        return ""
