"""The start of a new quirk, for a setting that restores parity and that no quirk covers."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from quirks_core.flags import ModelFlag
from quirks_core.plan import Plan, Strength
from quirks_core.versions import parse_version
from worker.ablation.settings import SETTINGS
from worker.parity.records import Change
from worker.testing.checkpoints import KINDS

#: Characters on a line of text.
_WIDTH = 120
_MODULE = Template('''"""On $where the rollout logprobs of $who differ from those of the trainer.

$happens

$changes

When it can go: TODO: with which version, or which change of vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import $imports

if TYPE_CHECKING:
    from worker.testing.lab import Lab, Outcome

QUIRK = Quirk(
$fields
)


async def scenario(lab: Lab) -> Outcome:
    """The logprobs of a rollout are those of the trainer."""
    # TODO: reduce the scenario $scenario of quirks parity to the smallest run that shows the fault.
    model = lab.checkpoint($kind)$todo
    trainer = lab.trainer(model)
    async with lab.worker(model, $values) as worker:
$generate
    return lab.close_logprobs(got, lab.rescored(trainer, got, $temperature))
''')


def skeleton(plan: Plan, step: Change, scenario: str, figures: Mapping[str, tuple[float, float]]) -> str:
    """Writes a complete module with a quirk that sets what was tried.

    Args:
        plan: The user's plan.
        step: What was in force, and what was tried.
        scenario: The scenario that it restores.
        figures: Values of metrics before and after.

    Returns:
        Python, formatted as ruff does it.
    """
    slots = [_Slot.of(plan, name, after) for name, _, after in step.parts]
    context = plan.context
    model_type, version = context.model.model_type, _version(plan)
    where, who = f"vLLM {version}" if version else "the installed vLLM", model_type or "a model"
    was = "; ".join(f"{name} = {'not set' if before is None else before}" for name, before, _ in step.parts)
    now = "; ".join(f"{slot.name} = {slot.after}" for slot in slots)
    seen = "; ".join(f"{name} is {old:.3g}, and {new:.3g} with {now}" for name, (old, new) in figures.items())
    reasons = "; ".join(SETTINGS[slot.name].why for slot in slots if slot.name in SETTINGS)
    rollout = context.purpose == "rollout"
    temperature = context.settings.get("sampling.temperature", 1.0)
    values = {**({} if rollout else {"purpose": context.purpose}), "sampling": {"temperature": temperature}}
    kind = model_type if model_type in KINDS else "qwen3"
    generate = ["await worker.refit_async(trainer)"] if rollout else []
    generate += [f"got = await lab.{'sample' if temperature else 'greedy'}(worker)"]
    return _MODULE.substitute(
        where=where,
        who=who,
        happens=_paragraph(
            f"What happens: measured by quirks parity in the scenario {scenario} on {where} "
            f"({context.platform or 'platform unknown'}) with {was}: {seen or 'it fails'}. Known: {reasons or 'nothing'}. "
            "TODO: say why."
        ),
        changes=_paragraph(f"What this changes: {now}. TODO: say what that costs."),
        imports=", ".join(_imports(slots, model_type, version)),
        fields=textwrap.indent("\n".join(_fields(plan, slots)), "    "),
        scenario=scenario,
        kind=_literal(kind),
        todo="" if kind == model_type else "  # TODO: your model",
        values=_literal(values),
        generate=textwrap.indent("\n".join(generate), "        "),
        temperature=_literal(temperature or 1.0),
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot of the new quirk."""

    name: str  #: the slot
    after: Any  #: what the quirk sets
    typed: Any  #: what the user typed instead; None if nothing
    rivals: frozenset[str]  #: quirks that require another value
    required: bool  #: a default of this quirk would not win

    @classmethod
    def of(cls, plan: Plan, name: str, after: Any) -> _Slot:
        lines = [line for line in plan.adjustments if line.slot == name and line.in_force and line.value != after]
        rivals = {quirk.id for line in lines if line.strength is Strength.REQUIRE for quirk in line.quirks}
        typed = plan.context.value(name) if plan.context.is_typed(name) else None
        return cls(name, after, typed, frozenset(rivals), typed is not None or bool(lines))

    @property
    def kind(self) -> str:
        return "Require" if self.required else "Default"

    def adjustment(self) -> str:
        arguments = f"{_literal(self.name)}, {_literal(self.after)}"
        instead = "" if self.typed is None else f", instead_of={_literal(self.typed)}"
        # Too long for a line, such as a folder: without instead_of, every other value counts as contrary.
        if len(arguments) + len(instead) > _WIDTH - len("adjustments=Require(),"):
            instead = ""
        return f"{self.kind}({arguments}{instead})"


def _imports(slots: Sequence[_Slot], model_type: str | None, version: str) -> list[str]:
    """Names in the order of isort: classes, then functions."""
    classes = {"ModelFlag", "Quirk", "Severity", *(slot.kind for slot in slots), *(["Affected"] if version else [])}
    functions = {"no", "purpose", "report", "yes", *(["model_type"] if model_type else [])}
    return [*sorted(classes), *sorted(functions | ({"unknown"} if model_type or version else set()))]


def _fields(plan: Plan, slots: Sequence[_Slot]) -> Iterator[str]:
    context = plan.context
    model_type, version = context.model.model_type, _version(plan)
    title = f"Rollout logprobs of {model_type or 'a model'} differ from those of the trainer"
    known = [SETTINGS[slot.name] for slot in slots if slot.name in SETTINGS]
    words = [model_type or "model", *dict.fromkeys(slot.name.rpartition(".")[2] for slot in slots)]
    own_id = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")
    purpose = f"purpose({_literal(context.purpose)})"
    yield f"id={_literal(f'your-package/{own_id}')},"
    yield f"title={_literal(title)},"
    yield f"flag=ModelFlag.{known[0].flag.name if known else ModelFlag.RUNTIME.name},"
    yield f"match=model_type({_literal(model_type)}) & {purpose}," if model_type else f"match={purpose},"
    if version:
        yield f'affected=Affected("vllm", introduced={_literal(version)}),  # TODO: since when?'
    calls = [slot.adjustment() for slot in slots]
    yield from [f"adjustments={calls[0]},"] if len(calls) == 1 else ["adjustments=[", *(f"    {call}," for call in calls), "],"]
    yield "severity=Severity.WRONG_OUTPUT,"
    yield f"references=report({_literal(known[0].source if known else 'https://example.org')}),  # TODO: yours"
    yield from ("examples=[", *(f"    {example}," for example in _examples(plan)), "],")
    if rivals := sorted({rival for slot in slots for rival in slot.rivals}):
        yield f"supersedes=[{', '.join(map(_literal, rivals))}],  # they require another value"


def _examples(plan: Plan) -> Iterator[str]:
    """The run itself, runs that the quirk does not concern, and one with missing facts."""
    model_type, version, own = plan.context.model.model_type, _version(plan), plan.context.purpose

    def call(answer: str, model: str | None, purpose: str) -> str:
        words = [*([_literal(model)] if model else []), *([f"vllm={_literal(version)}"] if version else [])]
        return f"{answer}({', '.join([*words, *([f'purpose={_literal(purpose)}'] if purpose != 'rollout' else [])])})"

    yield call("yes", model_type, own)
    yield call("no", model_type, "eval" if own == "serve" else "serve")
    if model_type:
        yield call("no", f"not_{model_type}", own)
    if model_type or version:
        yield "unknown()" if own == "rollout" else f"unknown(purpose={_literal(own)})"


def _version(plan: Plan) -> str:
    """The installed vLLM without its build suffix; empty if it cannot be compared with version ranges."""
    found = parse_version(plan.context.packages.get("vllm", ""))
    return found.public if found is not None and any(found.release) else ""


def _paragraph(text: str) -> str:
    """Lines of a docstring."""
    escaped = text.replace("\\", "\\\\").replace('"""', "'''")
    return "\n".join(textwrap.wrap(escaped, _WIDTH, break_long_words=False, break_on_hyphens=False))


def _literal(value: Any) -> str:
    """A Python literal with the quotes that ruff prefers."""
    if isinstance(value, str):
        return repr(value) if '"' in value or "\\" in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
