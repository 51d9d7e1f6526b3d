"""Sentences for the pages: what an adjustment does and when, in words instead of the notation of a declaration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from quirks_core.declaration.adjustments import Adjustment, Advise, Default, Patch, Refuse, Relation, Require
from quirks_core.declaration.match import All, AnyOf, Condition, Fact, InRange, Match, Not
from quirks_core.declaration.quirk import Quirk

#: What a fact that is true, or is not, means.
_TRUE: Mapping[str, tuple[str, str]] = {
    "model.is_moe": ("the model is a mixture of experts", "the model is dense"),
    "model.is_multimodal": ("the model is multimodal", "the model is not multimodal"),
    "engine.async_engine": ("the engine is asynchronous", "the engine is synchronous"),
}
#: What a value, or none, means.
_SET: Mapping[str, tuple[str, str]] = {
    "engine.generate_from_dummy": ("the engine is our worker's", "the engine is another program's"),
    "model.config.text_config": ("the model is multimodal", "the model is a language model"),
}
#: How a comparison is said, and its contrary, after the fact.
_VERBS: Mapping[str, tuple[str, str]] = {
    "above": ("is above {}", "is at most {}"),
    "below": ("is below {}", "is at least {}"),
    "differs_from": ("differs from {}", "is {}"),
    "indivisible_by": ("is no multiple of {}", "is a multiple of {}"),
    "is_not_empty": ("is not empty", "is empty"),
    "is_set": ("has a value", "has no value"),
    "is_true": ("is true", "is not true"),
}
_ONE_OF: Mapping[str, tuple[str, str]] = {
    "model.model_type": ("the model is of type {}", "the model is not of type {}"),
    "purpose": ("the purpose is {}", "the purpose is not {}"),
    "platform": ("the platform is {}", "the platform is not {}"),
}
_RELATIONS: Mapping[Relation, str] = {
    Relation.EQUALS: "sets {slot} to {value}",
    Relation.AT_MOST: "limits {slot} to {value}",
    Relation.AT_LEAST: "raises {slot} to {value}, or more",
    Relation.ONE_OF: "sets {slot} to one of {value}",
    Relation.INCLUDES: "adds to {slot}: {value}",
}


def sentence(quirk: Quirk, adjustment: Adjustment) -> str:
    """Returns what an adjustment does, and when, as a sentence in Markdown."""
    when = "" if adjustment.when is None else f"If {condition(adjustment.when)}: "
    text = _what(quirk, adjustment)
    return when + (text if when else text[:1].upper() + text[1:])


def condition(match: Match, *, holds: bool = True) -> str:
    """Returns a condition in words.

    Args:
        match: The condition.
        holds: False for its contrary.
    """
    match match:
        case Not():
            return condition(match.part, holds=not holds)
        case All() | AnyOf():
            is_and = isinstance(match, All) is holds
            parts = [_bracketed(part, condition(part, holds=holds)) for part in match.parts]
            return (" and " if is_and else ", or ").join(parts)
        case InRange():
            package = match.affected.package.replace("vllm", "vLLM")
            return f"the version of {package} is {'' if holds else 'not '}{match.affected}"
        case Condition():
            return _compared(match, 0 if holds else 1)
    return f"{'' if holds else 'not '}`{match}`"


def _bracketed(part: Match, text: str) -> str:
    return f"({text})" if isinstance(part.part if isinstance(part, Not) else part, All | AnyOf) else text


def _compared(one: Condition, side: int) -> str:
    """One comparison (side 0), or its contrary (side 1)."""
    name, operand = one.name, one.operand
    if name.startswith("typed."):
        slot = name.removeprefix("typed.")
        return f"the user leaves `{slot}` open" if side else f"the user sets `{slot}`"
    if name.startswith("env."):
        name = name.removeprefix("env.")
    if one.operator == "is_set" and name in _SET:
        return _SET[name][side]
    if one.operator == "is_true" and name in _TRUE:
        return _TRUE[name][side]
    if one.operator == "one_of":
        if operand == (False,) and name in _TRUE:
            return _TRUE[name][1 - side]
        values = " or ".join(map(_value, operand))
        return _ONE_OF.get(name, (f"`{name}` is {{}}", f"`{name}` is not {{}}"))[side].format(values)
    if one.operator == "any_in":
        return f"`{name}` {('contains', 'does not contain')[side]} {' or '.join(map(_value, operand))}"
    if one.operator == "matches":
        return f"`{name}` {('fits', 'does not fit')[side]} the pattern `{operand}`"
    return f"`{name}` {_VERBS[one.operator][side].format(_value(operand))}"


def _what(quirk: Quirk, adjustment: Adjustment) -> str:
    match adjustment:
        case Default() | Require():
            asked = _RELATIONS[adjustment.relation].format(slot=f"`{adjustment.slot}`", value=_operand(adjustment.operand))
            return f"{asked}{_against(adjustment)}."
        case Refuse():
            return f"refuses the run: {_ended(adjustment.reason)} Remedy: {_ended(adjustment.remedy)}"
        case Advise():
            return "warns of what it finds in the run." if callable(adjustment.message) else f"advises: {adjustment.message}."
        case Patch():
            module, _, name = adjustment.target.partition(":")
            return f"patches `{name}` in `{module}`{f': {adjustment.reason}' if adjustment.reason else ''}."
    raise TypeError(f"{quirk.id}: {adjustment!r}")


def _against(adjustment: Default | Require) -> str:
    """What becomes of a value that the user sets to the contrary."""
    if isinstance(adjustment, Default):
        return ", unless the user sets it"
    if adjustment.instead_of:
        return f"; a run in which the user sets it to {' or '.join(map(_value, adjustment.instead_of))} is refused"
    return "; a run in which the user sets it otherwise is refused"


def _operand(operand: Any) -> str:
    if not callable(operand):
        return _value(operand)
    first = (inspect.getdoc(operand) or "").partition("\n")[0].rstrip(".")
    return f"what follows from the run{f' ({first[:1].lower()}{first[1:]})' if first else ''}"


def _value(value: Any) -> str:
    if isinstance(value, Fact):
        return f"`{value.name}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


#: What an example says of its run where the name of a fact does not.
FACTS: Mapping[str, str] = {"engine.generate_from_dummy": "the engine is our worker's"}
