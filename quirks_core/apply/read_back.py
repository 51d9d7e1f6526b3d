"""Reads values of vLLM's as JSON values, and slots back from an engine's own configuration, wherever it keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from quirks_core.base.json_values import canonical
from quirks_core.configuration.slots import SLOTS, Place, slot_named
from quirks_core.declaration.adjustments import holds
from quirks_core.plan.records import ProcessPlan
from quirks_core.source.vllm_source import INSTALLED

#: What JSON has no value for, or is not there.
UNREADABLE = object()
#: By slot, the value that the engine replaces by what it stands for.
_STANDS_FOR = {"engine.dtype": "auto", "engine.head_dtype": "model"}


def read_configuration(vllm_config: Any, requested: Iterable[str]) -> dict[str, Any]:
    """Returns, by slot, what a ``VllmConfig`` holds of our slots and of others that are requested.

    The driver and every worker have a configuration of their own. A slot that the engine does not keep, or keeps as more than a
    scalar or a list of scalars, is left out.
    """
    slots = sorted(slot for slot in {*SLOTS, *requested} if slot_named(slot).place in (Place.ARGUMENT, Place.OVERRIDE))
    sections = dict(_sections(vllm_config))
    found = {slot: _scalars(_find(sections, slot_named(slot).key)) for slot in slots}
    return {slot: value for slot, value in found.items() if value is not UNREADABLE}


def contradictions(plan: ProcessPlan, values: Mapping[str, Any]) -> Iterator[str]:
    """Yields one message for each value that a quirk put or found in force and that an engine has otherwise."""
    for line in plan.adjustments:
        slot, wanted = line.slot, line.value
        is_there = line.in_force and slot in values and wanted != _STANDS_FOR.get(slot)
        if is_there and not holds(line.relation, wanted, values[slot]):
            yield f"{slot}: the plan wanted {line.relation} {wanted!r}, the engine has {values[slot]!r}"


def _sections(config: Any) -> Iterator[tuple[str, Any]]:
    """The configuration objects below one, by the name of their class; the outermost of a class comes first."""
    found = {type(config).__name__: config}
    waiting = [config]
    while waiting:
        for value in vars(waiting.pop(0)).values():
            name = type(value).__name__
            if is_dataclass(value) and type(value).__module__.startswith("vllm.config") and name not in found:
                found[name] = value
                waiting.append(value)
    yield from found.items()


def _find(sections: dict[str, Any], name: str) -> Any:
    """The value of an argument: in the class that its default is taken from, or in the only one that has such a name."""
    argument = INSTALLED.arguments.find(name)
    if argument is not None and argument.owner in sections:
        return getattr(sections[argument.owner], argument.attribute, UNREADABLE)
    owners = [section for section in sections.values() if name in vars(section) or hasattr(type(section), name)]
    return getattr(owners[0], name, UNREADABLE) if len(owners) == 1 else UNREADABLE


def _scalars(value: Any) -> Any:
    """A scalar or a list of scalars; `UNREADABLE` for anything else."""
    found = plain(value)
    members = found if isinstance(found, list) else [found]
    return found if all(member is None or isinstance(member, bool | int | float | str) for member in members) else UNREADABLE


def plain(value: Any) -> Any:
    """Returns a value of vLLM's as JSON has it; `UNREADABLE` if it has none."""
    if isinstance(value, Enum):  # an attention backend's value is the path of its class; users type its name
        return value.name if "." in str(value.value) else plain(value.value)
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        found = {str(key): plain(item) for key, item in value.items()}
        return UNREADABLE if any(item is UNREADABLE for item in found.values()) else found
    if isinstance(value, list | tuple | set | frozenset):
        members = [plain(item) for item in value]
        if any(item is UNREADABLE for item in members):
            return UNREADABLE
        return sorted(members, key=canonical) if isinstance(value, set | frozenset) else members
    return explicit(value) if is_dataclass(value) and not isinstance(value, type) else UNREADABLE


def explicit(value: Any) -> dict[str, Any]:
    """Returns the fields of one of vLLM's configuration objects that are not its defaults."""
    found = {}
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        given = getattr(value, field.name, default)
        if field.init and given is not default:
            read = plain(given)
            if read is not UNREADABLE and read != plain(default):
                found[field.name] = read
    return found
