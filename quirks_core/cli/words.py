"""A declaration in sentences: which runs it concerns, what it does and when, and its examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quirks_core.declaration.adjustments import Adjustment, Advise, Default, Patch, Refuse, Relation, Require
from quirks_core.declaration.examples import Example
from quirks_core.declaration.match import All, AnyOf, Condition, Fact, InRange, Match, Not, described
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
#: The words for a comparison, and for its contrary, after the fact.
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
        case All(words=words) | AnyOf(words=words) | Condition(words=words) if words is not None:
            return words.holds if holds else words.contrary
        case All() | AnyOf():
            is_and = isinstance(match, All) is holds
            return (" and " if is_and else ", or ").join(_clauses(match, holds, is_and=is_and))
        case InRange():
            package = match.affected.package.replace("vllm", "vLLM")
            return f"the version of {package} is {'' if holds else 'not '}{match.affected}"
        case Condition():
            return _compared(match, 0 if holds else 1)
    return f"{'' if holds else 'not '}`{match}`"


def _clauses(match: Match, holds: bool, *, is_and: bool) -> Iterator[str]:
    """Yields the clauses of a conjunction, or of a disjunction; one of the other kind is one clause in brackets."""
    while isinstance(match, Not):
        match, holds = match.part, not holds
    if not isinstance(match, All | AnyOf) or match.words is not None:
        yield condition(match, holds=holds)
    elif (isinstance(match, All) is holds) is not is_and:
        text = condition(match, holds=holds)
        yield f"({text})" if " and " in text or ", or " in text else text
    else:
        for part in _with_typed_values(match):
            yield from _clauses(part, holds, is_and=is_and)


def _with_typed_values(match: All | AnyOf) -> Iterator[Match]:
    """Yields the parts; "the user sets it" and "it is this value" in a conjunction are one."""
    conditions = [part for part in match.parts if isinstance(part, Condition)] if isinstance(match, All) else []
    values = {f"typed.{part.name}": part for part in conditions if part.operator == "one_of"}
    set_to = {part.name: values[part.name] for part in conditions if part.name in values}
    for part in match.parts:
        if isinstance(part, Condition) and (value := set_to.get(part.name)):
            text = f"`{value.name}` to {_listed(value.operand)}"
            yield described(part, f"the user sets {text}", f"the user does not set {text}")
        elif part not in set_to.values():
            yield part


def _compared(one: Condition, side: int) -> str:
    """One comparison (side 0), or its contrary (side 1)."""
    name, operand = one.name, one.operand
    if name.startswith("typed."):
        slot = name.removeprefix("typed.")
        return f"the user leaves `{slot}` open" if side else f"the user sets `{slot}`"
    name = name.removeprefix("env.")
    if one.operator == "is_set" and name in _SET:
        return _SET[name][side]
    if one.operator == "is_true" and name in _TRUE:
        return _TRUE[name][side]
    if one.operator == "one_of":
        if operand == (False,) and name in _TRUE:
            return _TRUE[name][1 - side]
        values = _listed(operand)
        return _ONE_OF.get(name, (f"`{name}` is {{}}", f"`{name}` is not {{}}"))[side].format(values)
    if one.operator == "any_in":
        return f"`{name}` {('contains', 'does not contain')[side]} {_listed(operand)}"
    if one.operator == "matches":
        return f"`{name}` {_pattern(operand, side)}"
    return f"`{name}` {_VERBS[one.operator][side].format(_value(operand))}"


def _pattern(pattern: str, side: int) -> str:
    """A search for a regular expression; one for plain words at the beginning, or anywhere, needs no knowledge of them."""
    if plain := re.fullmatch(r"(\^?)(?:\(([\w|-]+)\)|([\w-]+))", pattern):
        verbs = ("begins with", "does not begin with") if plain[1] else ("contains", "does not contain")
        return f"{verbs[side]} {_listed((plain[2] or plain[3]).split('|'))}"
    return f"{('fits', 'does not fit')[side]} the pattern `{pattern}`"


def _what(quirk: Quirk, adjustment: Adjustment) -> str:
    match adjustment:
        case Default() | Require():
            wanted = _RELATIONS[adjustment.relation].format(slot=f"`{adjustment.slot}`", value=_operand(adjustment.operand))
            return f"{wanted}{_against(adjustment)}."
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


def _listed(values: Sequence[Any]) -> str:
    *first, last = map(_value, values)
    return f"{', '.join(first)} or {last}" if first else last


def _value(value: Any) -> str:
    if isinstance(value, Fact):
        return f"`{value.name}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def runs(match: Match) -> str:
    """Returns the runs that a match holds for, in words."""
    return "every run" if match == All() else f"runs in which {condition(match)}"


def example(one: Example) -> str:
    """Returns the run of an example in words, fact by fact."""
    return "; ".join(_facts(one)) or "nothing is known"


def outcome(one: Example) -> str:
    """Returns the outcome that an example states, in words."""
    done = [f"`{slot}` becomes {_value(value)}" for slot, value in (one.gives or {}).items()]
    done += [f"`{name}` is patched" for name in one.patches]
    return "; ".join([*done, *(["the run is refused"] if one.refuses else []), *(["the plan advises"] if one.advises else [])])


def _facts(one: Example) -> Iterator[str]:
    for name, value in one.config.items():
        yield f"a model of type `{value}`" if name == "model_type" else f"`config.json` has {_value(value)} for `{name}`"
    if one.name != "model":
        yield f"a model named `{one.name}`"
    for name, version in one.packages.items():
        yield f"{name.replace('vllm', 'vLLM')} {version}"
    for slot, value in {**one.defaults, **one.settings}.items():
        if slot in _SET:
            yield _SET[slot][0]
        else:
            yield f"the user sets `{slot}` to {_value(value)}" if slot in one.settings else f"`{slot}` is {_value(value)}"
    for name, text in one.environment.items():
        yield f"the environment has `{name}={text}`"
    for name, value in one.extra.items():
        yield f"`{name}` is {_value(value)}"
    for kind, named in (("platform", one.platform), ("CPU", one.cpu), ("recipe", one.recipe)):
        if named:
            yield f"the {kind} is {named}"
    if one.purpose != "rollout":
        yield f"the purpose is {one.purpose}"
