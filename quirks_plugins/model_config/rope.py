"""The rotary settings of ``config.json`` and of ``engine.hf_overrides``, under their names of today and of old.

``rope_parameters`` is the mapping of transformers 5. Before, the mapping was ``rope_scaling``, with ``rope_theta`` and
``partial_rotary_factor`` beside it. transformers 5 reads both; vLLM uses a mapping that the user set without a change.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from quirks_core import Affected, Fact, Match, RunContext, described, setting
from quirks_plugins.conditions import nested_language_model

OVERRIDES = "engine.hf_overrides"
#: The names of the mapping, the newer one first.
NAMES = ("rope_parameters", "rope_scaling")
#: Before, ``rope_theta`` was no part of the mapping.
TRANSFORMERS_5 = Affected("transformers", introduced="5.0.0")
#: Kinds of scaling that start from the length that the model was trained on.
_FROM_A_LENGTH = ("llama3", "longrope", "yarn")
_LENGTH = "original_max_position_embeddings"
_PARTIAL = "partial_rotary_factor"

#: An override at the top level does not reach the language model of a multimodal one.
text_only = ~nested_language_model
typed_parameters = setting(f"{OVERRIDES}.rope_parameters").is_set()
typed_scaling = setting(f"{OVERRIDES}.rope_scaling").is_set()
typed_theta = setting(f"{OVERRIDES}.rope_theta").is_set()


def of_kind(*kinds: str) -> Match:
    """The rotary embedding is of one of these kinds: what was typed counts, else the checkpoint's declaration."""
    names = " or ".join(f"`{kind}`" for kind in kinds)
    is_one: Match = described(
        reduce(or_, map(_of_one_kind, kinds)),
        f"the kind of rope scaling is {names}",
        f"the kind of rope scaling is not {names}",
    )
    return is_one


def _of_one_kind(kind: str) -> Match:
    typed_kind, own_kind = (_kind(kind, place) for place in (OVERRIDES, "model.config"))
    return typed_kind | (~typed_parameters & ~typed_scaling & own_kind)


def _kind(kind: str, place: str) -> Match:
    new, old = (Fact(f"{place}.{name}") for name in NAMES)
    found = [Fact(f"{mapping.name}.{key}").one_of(kind) for mapping in (new, old) for key in ("rope_type", "type")]
    return found[0] | found[1] | found[2] | found[3]


def overrides(context: RunContext) -> Mapping[str, Any]:
    """What the user changes of the checkpoint's configuration."""
    return context.value(OVERRIDES) or {}


def typed_mappings(context: RunContext) -> dict[str, dict[str, Any]]:
    """The mappings that the user typed, by name."""
    return {name: value for name in NAMES if isinstance(value := overrides(context).get(name), dict)}


def is_by_layer(parameters: Mapping[str, Any]) -> bool:
    """Each kind of layer has a mapping of its own."""
    return any(isinstance(value, dict) for value in parameters.values())


def own(context: RunContext) -> dict[str, Any]:
    """The checkpoint's parameters in one mapping, as transformers 5 makes it, without a ``rope_theta`` if none is given."""
    config = context.model.config
    found = next((dict(value) for name in NAMES if isinstance(value := config.get(name), dict)), {})
    if is_by_layer(found):
        return found
    for name in ("rope_theta", _PARTIAL):
        if config.get(name) is not None:
            found.setdefault(name, config[name])
    return found


def completed(context: RunContext, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to the parameters what transformers would add if they stood in ``config.json``.

    Args:
        context: The run.
        parameters: Those of all layers together.
    """
    config, mine = context.model.config, own(context)
    found = {key: value for key, value in parameters.items() if key != "type"}
    found.setdefault("rope_type", parameters.get("type", "default"))
    theta = overrides(context).get("rope_theta", mine.get("rope_theta"))
    for name, value in (("rope_theta", theta), (_PARTIAL, mine.get(_PARTIAL))):
        if value is not None:
            found.setdefault(name, value)
    length = config.get(_LENGTH, config.get("max_position_embeddings"))
    if found["rope_type"] in _FROM_A_LENGTH and length is not None:
        found.setdefault(_LENGTH, length)
    return found


def lacking(parameters: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a mapping lacks of another one, at any depth."""
    found: dict[str, Any] = {}
    for key, value in whole.items():
        here = parameters.get(key)
        if here is None:
            found[key] = value
        elif isinstance(here, dict) and isinstance(value, dict) and (missing := lacking(here, value)):
            found[key] = missing
    return found


def num_positions(context: RunContext) -> int:
    """How many positions vLLM computes rotations for, if ``max_position_embeddings`` is known."""
    parameters = completed(context, next(reversed(typed_mappings(context).values()), own(context)))
    length = overrides(context).get("max_position_embeddings", context.model.config["max_position_embeddings"])
    factor = parameters.get("factor") or 1.0
    if parameters["rope_type"] == "yarn":
        return int(parameters[_LENGTH] * factor)
    return int(length * factor) if parameters["rope_type"] == "linear" else int(length)
