"""What a plan changes as options of ``vllm serve``, to be pasted, and how a user sets a slot or supplies a fact.

The options hold only what the quirks change; what the user typed is there already. What they cannot express is a note:
variables, patches, which need the hook in the engine's processes, and what the trainer or the client has to do.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from quirks_core.configuration.slots import Place, engine_problem, placed, problem_of_name, slot_around, slot_named
from quirks_core.facts.fact_table import assumed_as
from quirks_core.plan import summary
from quirks_core.plan.records import Plan
from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED

_OVERRIDES = "hf_overrides"
#: The variable that has vLLM's processes apply a plan, patches included.
_HOOK = "MODEL_QUIRKS"


def vllm_args(plan: Plan) -> tuple[str, list[str]]:
    """Returns what a plan without refusals changes as options of ``vllm serve``.

    Returns:
        The options to append, quoted for a shell, of which the last of several counts; empty if nothing changes. And what they
        cannot express, one sentence each, with the plan's warnings.
    """
    words, notes = [], []
    for name, value in _engine_arguments(plan).items():
        found = _option(name, value)
        if isinstance(found, str):
            notes.append(found)
        else:
            words += found
    for name, value in sorted(placed(Place.VARIABLE, plan.changes).items()):
        notes.append(f"export {name}={shlex.quote(str(value))}, before the server starts")
    return shlex.join(words), [*notes, *_notes(plan)]


def option_for(fact: str) -> str:
    """Returns our command line's option that supplies a fact; an empty string if there is none."""
    if name := assumed_as(fact):
        return f"--assume {name}==…"
    if problem_of_name(slot_around(fact)) is not None:
        return ""
    return f"--set {fact}=…" if is_setting(fact) else "--assume vllm==…"  # of a version that has the argument


def is_setting(fact: str) -> bool:
    """Returns whether a missing fact is a slot that the user can set."""
    slot = slot_around(fact)
    return not assumed_as(fact) and problem_of_name(slot) is None and not engine_problem(slot)


def setting(slot: str, value: Any, *, as_option: bool) -> str:
    """Returns how a program sets an engine argument: as an option of ``vllm serve``, or as a keyword; empty for other slots."""
    if slot_named(slot).place is not Place.ARGUMENT:
        return ""
    name = slot_named(slot).key
    found = _option(name, value) if as_option else [f"{name}={value!r}"]
    return "" if isinstance(found, str) else shlex.join(found) if as_option else found[0]


def _engine_arguments(plan: Plan) -> dict[str, Any]:
    """The engine arguments that quirks change; the head's dtype is one of the changes to the checkpoint's configuration."""
    found, head = dict(sorted(placed(Place.ARGUMENT, plan.changes).items())), plan.value("engine.head_dtype")
    if placed(Place.OVERRIDE, plan.changes) or (_OVERRIDES in found and head):
        found[_OVERRIDES] = {**(plan.value(f"engine.{_OVERRIDES}") or {}), "head_dtype": head}
    return found


def _option(name: str, value: Any) -> list[str] | str:
    """The words that set an engine argument; a note if there are none."""
    option = INSTALLED.option_of(name)
    if option is None and INSTALLED.options() is not None:
        return f"engine.{name} = {_json(value)}: 'vllm serve' of the installed vLLM has no option for it"
    typed, shape = (option.name, option.shape) if option else (f"--{name.replace('_', '-')}", None)
    if isinstance(value, bool):
        if shape is Shape.SWITCH and not value:
            return f"engine.{name} = false: leave out {typed}"
        return [typed] if value else [f"--no-{typed.removeprefix('--')}"]
    if isinstance(value, list | tuple) and shape in (None, Shape.VALUES):
        return [typed, *(item if isinstance(item, str) else _json(item) for item in value)]
    text = value if isinstance(value, str) else _json(value)
    return [f"{typed}={text}"] if isinstance(value, str) and text.startswith("-") else [typed, text]


def _notes(plan: Plan) -> Iterator[str]:
    """What neither an option nor a variable can express."""
    for slot, value in sorted(plan.changes.items()):
        place = slot_named(slot).place
        if place is Place.WORKER:
            yield f"{slot} = {_json(value)}: a choice of model-quirks' worker, no argument of vLLM"
        elif place is Place.OUTSIDE:
            yield f"{slot} = {_json(value)}: {summary.call(slot, value)}"
    for patch in plan.patches:
        hook = f"{_HOOK}={plan.context.purpose}"
        yield f"{patch.quirk.id} patches {patch.target}; no option does that, {hook} does: {patch.quirk.reason}"
    yield from (f"warning: {text}" for text in summary.messages(plan))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
