"""Quirks as JSON values and back: a declaration is data, so it can be compared, digested and sent.

A value that is a function travels as its name (``package.module:function``); a lambda has none and cannot come back.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from quirks_core import adjustments, examples, fingerprints, match, probes, quirk, versions
from quirks_core.adjustments import Patch
from quirks_core.errors import DeclarationError, shown
from quirks_core.plan import sha256
from quirks_core.quirk import Quirk
from quirks_core.trace import Answer

_TYPE, _FUNCTION = "$type", "$function"

#: The records of our own, by name; those of others are named with their module.
_RECORDS: Mapping[str, type] = {
    record.__name__: record
    for record in (
        adjustments.Advise,
        adjustments.Default,
        adjustments.Patch,
        adjustments.Refuse,
        adjustments.Require,
        examples.Example,
        match.All,
        match.AnyOf,
        match.Condition,
        match.Fact,
        match.InRange,
        match.Not,
        probes.FingerprintProbe,
        probes.StaticProbe,
        probes.SymbolProbe,
        quirk.PairedRun,
        quirk.Quirk,
        quirk.Reference,
        versions.Affected,
    )
}

#: What a record can be that is not our own: a third party's kind of match or probe.
_OURS = (*_RECORDS.values(), match.Match, probes.Probe)


def encode(value: Any) -> Any:
    """Puts a quirk, or a part of one, into JSON values. Where it is declared (file and line) is no part of them.

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
        return {_TYPE: _record_name(type(value)), **fields}
    if callable(value):
        return {_FUNCTION: _name(value), "sha256": _function_digest(value)}
    raise DeclarationError(f"{value!r} in a declaration is not data")


def decode(value: Any) -> Any:
    """Makes a quirk, or a part of one, from what `encode` returned.

    Raises:
        DeclarationError: It is not what `encode` returns, or names something that is not installed.
    """
    if isinstance(value, list):
        return [decode(member) for member in value]
    if not isinstance(value, Mapping):
        return value
    if _FUNCTION in value:
        return _imported(value[_FUNCTION])
    fields = {key: decode(item) for key, item in value.items() if key != _TYPE}
    if _TYPE not in value:
        return fields
    record = _RECORDS.get(str(value[_TYPE])) or _imported(value[_TYPE])
    if not (isinstance(record, type) and dataclasses.is_dataclass(record) and issubclass(record, _OURS)):
        raise DeclarationError(f"{value[_TYPE]} is no part of a declaration")  # JSON must not be a way to run code
    # JSON has no tuples: what a record holds as one comes as a list. Values of slots are lists by convention.
    fields = {name: tuple(item) if isinstance(item, list) and name != "value" else item for name, item in fields.items()}
    try:
        for name, kind in (("answer", Answer), ("severity", quirk.Severity)):
            if name in fields:
                fields[name] = kind(fields[name])
        return record(**fields)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{value[_TYPE]} cannot be made from {sorted(fields)}: {error}") from None


def digest(declared: Quirk) -> str:
    """Returns the SHA-256 of a declaration and of the functions that it names."""
    code = [fingerprints.fingerprint(item.source) for item in declared.adjustments if isinstance(item, Patch)]
    return sha256([encode(declared), code])


def _record_name(record: type) -> str:
    return record.__name__ if _RECORDS.get(record.__name__) is record else f"{record.__module__}:{record.__qualname__}"


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', repr(function))}"


def _function_digest(function: Callable[..., Any]) -> str:
    try:
        return sha256(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def _imported(name: Any) -> Any:
    if not isinstance(name, str):
        raise DeclarationError(f"{shown(name)} is no name of a record or function")
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise DeclarationError(f"{name} cannot be found again: {error}") from None
    return found
