"""Slots: everything that a quirk may adjust, under the name that the user would type in a configuration.

The fields of a configuration's sections are slots (`quirks_core.configuration.config`). Two families are open:
``engine.<argument>`` for every argument of the installed vLLM, and ``env.<NAME>`` for every variable that neither
holds a secret nor chooses code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from quirks_core.base import json_values
from quirks_core.base.errors import UsageError, nearest, shown
from quirks_core.configuration import variables
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.sections import EngineSection
from quirks_core.source.vllm_source import INSTALLED, VllmSource

T = TypeVar("T")
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
#: Characters of a wrong value in a message; more would bury what is wrong with it.
_MOST_SHOWN = 100


class Place(Enum):
    """Where a slot is put in force."""

    ARGUMENT = "an argument of vLLM"
    OVERRIDE = "the checkpoint's configuration, as hf_overrides changes it"
    VARIABLE = "the environment"
    WORKER = "our worker, which alone reads it"
    OUTSIDE = "what starts the engine: our worker, or a trainer or client"


#: The fields of the section ``engine`` that are no arguments of vLLM.
_NO_ARGUMENTS = {"head_dtype": Place.OVERRIDE} | dict.fromkeys(("async_engine", "generate_from_dummy"), Place.WORKER)


@dataclass(frozen=True)
class Slot:
    """One adjustable setting.

    Attributes:
        name: Dotted name.
        type: What it takes, as an annotation with its limits; ``Any`` if that is not known.
        help: What it sets.
        default: The configuration's default; None for what is left open.
    """

    name: str
    type: Any
    help: str = ""
    default: Any = None

    @cached_property
    def family(self) -> str:
        """The section, ``engine`` and ``env`` among them; empty if the name has no dot."""
        return self.name.partition(".")[0] if "." in self.name else ""

    @cached_property
    def key(self) -> str:
        """Its name in the family: of an argument, a variable or a field."""
        return self.name.partition(".")[2]

    @cached_property
    def place(self) -> Place:
        """Where it is put in force."""
        if self.family == "engine":
            return _NO_ARGUMENTS.get(self.key, Place.ARGUMENT)
        return Place.VARIABLE if self.family == "env" else Place.OUTSIDE

    @property
    def is_enforced(self) -> bool:
        """The engine's process can put it in force; it cannot for what a trainer or client has to do."""
        return self.place in (Place.ARGUMENT, Place.OVERRIDE, Place.VARIABLE)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that it can take; empty if any value of its type will do."""
        kinds = _members(self.type)
        return tuple(value for kind in kinds for value in get_args(kind)) if all(map(_is_literal, kinds)) else ()

    @property
    def listed(self) -> tuple[Any, ...]:
        """The values that are listed beside any other text, which may stand for something, too."""
        kinds = _members(self.type)
        return tuple(value for kind in filter(_is_literal, kinds) for value in get_args(kind)) if str in kinds else ()

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        if self.type is Any:
            return "any JSON value"
        listed = ", ".join(map(str, self.choices))
        return f"one of {listed}" if listed else " or ".join(_word(kind) for kind in _members(self.type))

    @property
    def is_number(self) -> bool:
        """It can be bounded: ``at_most=``, ``at_least=``."""
        return self.type is Any or any(kind in (int, float) for kind in _members(self.type))

    @property
    def is_list(self) -> bool:
        """It has members: ``includes=``."""
        return self.type is Any or any((get_origin(kind) or kind) in (list, set, tuple) for kind in _members(self.type))

    def problem(self, value: object) -> str | None:
        """Returns what is wrong with a value; None if the slot can take it."""
        if value is None:
            return self._refusal(value)
        if why := json_values.problem(value):
            return f"{self._refusal(value)}, which {why}"
        try:
            _adapter(self.type).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            hint = nearest(str(value), map(str, self.choices)) if self.choices else _limits(error)
            return f"{self._refusal(value)}{hint}"
        return None

    def _refusal(self, value: object) -> str:
        return f"{self.name} takes {self.takes}, not {shown(value, _MOST_SHOWN)}"

    def plain(self, value: Any) -> Any:
        """Returns a value that the slot can take as plans hold it: a copy, of JSON's types; 600 and 600.0 are the same wish."""
        found = json_values.plain(value)
        return float(found) if isinstance(found, int) and _members(self.type) == (float,) else found


def _closed() -> Mapping[str, Slot]:
    found = {}
    for section in GenerationConfig.SLOT_SECTIONS:
        kind: Any = GenerationConfig.model_fields[section].annotation
        for key, field in kind.model_fields.items():
            type_ = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            name = f"{section}.{key}"
            found[name] = Slot(name, type_, field.description or "", field.default)
    return MappingProxyType(dict(sorted(found.items())))


#: The slots of the configuration's sections by name, in alphabetical order.
SLOTS = _closed()


@lru_cache(maxsize=4096)
def slot_named(name: str) -> Slot:
    """Returns the slot of any name; `find_slot` refuses a name that no slot can have."""
    return SLOTS.get(name) or (Slot(name, str, "environment variable") if name.startswith("env.") else Slot(name, Any))


def is_slot(name: str) -> bool:
    """Returns whether a slot has that name, or one of an open family can have it."""
    return problem_of_name(name) is None


def problem_of_name(name: str) -> str | None:
    """Returns why no slot has that name, with the nearest one; None if one has it, or one of an open family can have it."""
    if name in SLOTS:
        return None
    slot = slot_named(name)
    if not _is_open(slot):
        return f"unknown slot {name!r}{nearest(name, SLOTS)}"
    if slot.family == "env":
        return variables.reason_to_refuse(slot.key)
    if variables.is_secret(slot.key.rpartition("_")[2]):  # a token_threshold is none
        return f"{name}: the name looks like that of a secret, and plans are kept and shown"
    return None


def _is_open(slot: Slot) -> bool:
    """Returns whether a slot needs no declaration: a variable, or an argument of the engine."""
    return slot.family == "env" or (slot.family == "engine" and bool(_IDENTIFIER.fullmatch(slot.key)))


def slot_around(name: str) -> str:
    """Returns the engine argument in which a key lies: ``engine.hf_overrides`` of ``engine.hf_overrides.rope_theta``.

    Only conditions name keys; an adjustment of a key gives its slot a mapping. Any other name is returned as it is.
    """
    slot = slot_named(name)
    return f"engine.{slot.key.partition('.')[0]}" if slot.family == "engine" else name


def find_slot(name: str) -> Slot:
    """Returns the slot of that name; what vLLM knows of an engine argument is left out, as a quirk can be for another one.

    Raises:
        UsageError: There is none; the message names the nearest one, or explains why it is refused.
    """
    if problem := problem_of_name(name):
        raise UsageError(problem)
    return slot_named(name)


def checked_value(name: str, value: Any) -> Any:
    """Returns the value if the slot can take it.

    Raises:
        UsageError: The slot does not exist or does not take this value.
    """
    if problem := find_slot(name).problem(value):
        raise UsageError(problem)
    return value


def placed(place: Place, values: Mapping[str, T]) -> dict[str, T]:
    """Returns the values of the slots that are put in force in one place, by their names there."""
    return {slot.key: value for name, value in values.items() if (slot := slot_named(name)).place is place}


def installed_slot(name: str, source: VllmSource = INSTALLED) -> Slot | None:
    """Returns an engine argument's slot as vLLM has it; None if it does not, or there is no vLLM."""
    slot = slot_named(name)
    argument = source.arguments.find(slot.key) if slot.place is Place.ARGUMENT else None
    return None if argument is None else Slot(name, argument.type)


def engine_problem(name: str, value: Any = None, source: VllmSource = INSTALLED) -> str | None:
    """Returns why vLLM will not take an engine argument, or of None its name; None if it will, or there is no vLLM."""
    known = source.arguments.names()
    if known is None or slot_named(name).place is not Place.ARGUMENT:
        return None
    if slot := installed_slot(name, source):
        return None if value is None else slot.problem(value)
    near = nearest(slot_named(name).key, {*known, *EngineSection.model_fields})
    return f"{name}: the installed vLLM has no such engine argument{near}"


def engine_doubt(name: str, value: Any, source: VllmSource = INSTALLED) -> str | None:
    """Returns a warning for an unlisted value of an argument that takes such ones, too; None if it is listed, or none are."""
    slot = installed_slot(name, source)
    if slot is None or not slot.listed or not isinstance(value, str) or value in slot.listed:
        return None
    known = ", ".join(map(str, slot.listed))
    near = nearest(value, slot.listed)
    return (
        f"{name}: the installed vLLM does not list {shown(value, _MOST_SHOWN)}{near} (listed: {known}; a plugin may add others)"
    )


@lru_cache(maxsize=512)
def _adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def _members(type_: Any) -> tuple[Any, ...]:
    """The kinds of a union without None; limits are left out."""
    if get_origin(type_) is Annotated:
        return _members(get_args(type_)[0])
    kinds = get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)
    return tuple(
        part for kind in kinds if kind is not type(None) for part in (_members(kind) if kind is not type_ else (kind,))
    )


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


_WORDS = {
    bool: "true or false",
    dict: "a mapping",
    float: "a number",
    int: "a whole number",
    list: "a list",
    set: "a list",
    str: "a text",
    tuple: "a list",
}
_MANY = {float: "numbers", int: "whole numbers", str: "texts"}


def _word(kind: Any) -> str:
    if _is_literal(kind):
        return " or ".join(map(str, get_args(kind)))
    word = _WORDS.get(get_origin(kind) or kind, str(getattr(kind, "__name__", kind)))
    return f"{word} of {_MANY[get_args(kind)[0]]}" if word == "a list" and get_args(kind) else word


def _limits(error: ValidationError) -> str:
    """Returns the limit that a value violates, as ' (must be at least 1)'; empty for a wrong type."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f" ({first['msg'][0].lower()}{first['msg'][1:]})" if "ctx" in first else ""
