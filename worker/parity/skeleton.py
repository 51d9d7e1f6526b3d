"""A declaration to begin a new quirk with, where a setting restores parity and no quirk covers it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quirks_core.context import RunContext
from quirks_core.flags import ModelFlag
from quirks_core.plan import Plan, Strength
from quirks_core.slots import SLOTS
from quirks_core.testing.checkpoints import KINDS
from quirks_core.versions import parse_version
from worker.parity.settings import SETTINGS, parts

#: Characters on a line.
_WIDTH = 120
_INDENT = "    "
#: Where the author has to put the name of their package.
_PACKAGE = "your_package"


def skeleton(
    plan: Plan, setting: str, before: Any, after: Any, scenario: str, figures: Mapping[str, tuple[float, float]]
) -> str:
    """Writes a complete module with a quirk that sets what was tried.

    Args:
        plan: The user's plan.
        setting: The step's setting: a path, or several.
        before: What was in force; a list for several.
        after: What was tried; a list for several.
        scenario: The scenario that it restores.
        figures: Values of metrics before and after.

    Returns:
        Python, formatted as ruff does it.
    """
    pairs = zip(parts(setting, before), parts(setting, after), strict=True)
    changes = [_Change.of(plan, name, old, new) for (name, old), (_, new) in pairs]
    module = _Module(plan.context, tuple(changes), scenario, figures)
    return "\n".join(module.lines()) + "\n"


@dataclass(frozen=True, slots=True)
class _Change:
    """One slot of the new quirk.

    Attributes:
        slot: The slot.
        before: What was in force.
        after: What the quirk sets.
        found: The value before quirks; None if it was left open.
        typed: Whether the user typed that.
        rivals: Quirks that require the value that was in force; they stand in the way.
        required: A default of this quirk would not win.
    """

    slot: str
    before: Any
    after: Any
    found: Any
    typed: bool
    rivals: tuple[str, ...]
    required: bool

    @classmethod
    def of(cls, plan: Plan, slot: str, before: Any, after: Any) -> _Change:
        context = plan.context
        lines = [line for line in plan.adjustments if line.slot == slot and line.in_force and line.value != after]
        rivals = {quirk.id for line in lines if line.strength is Strength.REQUIRE for quirk in line.quirks}
        typed = slot in context.typed
        found = context.settings.get(slot)
        return cls(slot, before, after, found, typed, tuple(sorted(rivals)), typed or bool(lines))

    @property
    def is_slot(self) -> bool:
        return self.slot in SLOTS

    @property
    def name(self) -> str:
        return "_" + self.slot.replace(".", "_").lower()

    @property
    def match(self) -> str:
        """The slot as the run had it; empty where that is said by the adjustment, or by nothing."""
        if not self.is_slot or self.typed:
            return ""
        if self.found is None:
            return f"~setting({_literal(self.slot)}).is_set()"
        return f"setting({_literal(self.slot)}).one_of({_literal(self.found)})"

    @property
    def kind(self) -> str:
        """The class of the adjustment."""
        return "Advise" if not self.is_slot else "Require" if self.required else "Default"

    def adjustment(self) -> str:
        """The call that makes the adjustment."""
        if not self.is_slot:
            name = self.slot.removeprefix("env.")
            return f"Advise({_literal(f'set {name}={self.after}: rollout logprobs differ from those of the trainer')})"
        arguments = f"{_literal(self.slot)}, {_literal(self.after)}"
        instead = f", instead_of=({_literal(self.found)},)" if self.typed else ""
        if len(arguments) + len(instead) > _WIDTH - len("adjustments=Require(),"):  # a folder; then all others are contrary
            instead = ""
        return f"{self.kind}({arguments}{instead})"


@dataclass(frozen=True, slots=True)
class _Module:
    """The module's text."""

    context: RunContext
    changes: tuple[_Change, ...]
    scenario: str
    figures: Mapping[str, tuple[float, float]]

    @property
    def model_type(self) -> str | None:
        return self.context.model.model_type

    @property
    def who(self) -> str:
        return self.model_type or "a model"

    @property
    def version(self) -> str:
        """The installed vLLM, without what a build adds; empty if ranges cannot place it."""
        found = parse_version(self.context.packages.get("vllm", ""))
        return found.public if found is not None and any(found.release) else ""

    @property
    def where(self) -> str:
        return f"vLLM {self.version}" if self.version else "the installed vLLM"

    @property
    def own_id(self) -> str:
        words = [self.model_type or "model", *dict.fromkeys(change.slot.rpartition(".")[2] for change in self.changes)]
        return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")

    @property
    def name(self) -> str:
        name = self.own_id.replace("-", "_")
        return name if name.isidentifier() else f"quirk_{name}"

    def lines(self) -> Iterator[str]:
        yield from self._docstring()
        yield from ("", "from __future__ import annotations", "", "from typing import TYPE_CHECKING", "")
        yield from ("from quirks_core import (", *(f"{_INDENT}{name}," for name in self._imports()), ")", "")
        yield from ("if TYPE_CHECKING:", f"{_INDENT}from quirks_core.testing.lab import Lab, Outcome", "")
        yield f"_run = {self._run()}"
        yield from (f"{change.name} = {change.match}" for change in self.changes if change.match)
        yield ""
        yield from self._quirk()
        yield from ("", "")
        yield from self._scenario()

    def _docstring(self) -> Iterator[str]:
        yield f'"""On {self.where} the rollout logprobs of {self.who} differ from those of the trainer.'
        yield ""
        was = "; ".join(f"{change.slot} = {_shown(change.before)}" for change in self.changes)
        now = "; ".join(f"{change.slot} = {change.after}" for change in self.changes)
        measured = "; ".join(f"{name} is {old:.3g}, and {new:.3g} with {now}" for name, (old, new) in self.figures.items())
        yield from _paragraph(
            f"What happens: measured by quirks parity in the scenario {self.scenario} on {self.where} "
            f"({self.context.platform or 'platform unknown'}) with {was}: {measured or 'it fails'}. TODO: say why."
        )
        yield ""
        yield from _paragraph(f"What this changes: {now}. TODO: say what that costs.")
        yield ""
        yield from _paragraph("When it can go: TODO: with which version, or which change of vLLM.")
        yield '"""'

    def _imports(self) -> list[str]:
        """Names in the order of isort: classes, then functions."""
        classes = {
            "Answer",
            "Example",
            "ModelFlag",
            "PairedRun",
            "Quirk",
            "Severity",
            *(change.kind for change in self.changes),
        }
        functions = {"purpose", "report"}
        if self.version:
            classes.add("Affected")
        if self.model_type:
            functions.add("model_type")
        if any(change.match for change in self.changes):
            functions.add("setting")
        return [*sorted(classes), *sorted(functions)]

    def _run(self) -> str:
        purpose = f"purpose({_literal(self.context.purpose)})"
        return f"model_type({_literal(self.model_type)}) & {purpose}" if self.model_type else purpose

    def _quirk(self) -> Iterator[str]:
        known = next((SETTINGS[change.slot].flag for change in self.changes if change.slot in SETTINGS), ModelFlag.RUNTIME)
        yield "QUIRK = Quirk("
        body: list[str] = [
            f"id={_literal(f'your-package/{self.own_id}')},",
            f"title={_literal(f'Rollout logprobs of {self.who} differ from those of the trainer')},",
            f"flag=ModelFlag.{known.name},",
            f"match={' & '.join(['_run', *(change.name for change in self.changes if change.match)])},",
        ]
        if self.version:
            body.append(f'affected=Affected("vllm", introduced={_literal(self.version)}),  # TODO: since when?')
        calls = [f"{change.adjustment()}," for change in self.changes]
        one = len(calls) == 1
        body += [f"adjustments={calls[0]}"] if one else ["adjustments=(", *(f"{_INDENT}{call}" for call in calls), "),"]
        body += ["severity=Severity.WRONG_OUTPUT,", "# TODO: where the problem is reported or described."]
        body.append('references=(report("https://example.org/where-the-problem-is-reported"),),')
        body += ["evidence=(", f"{_INDENT}PairedRun(", f"{_INDENT * 2}{_literal(f'{_PACKAGE}.{self.name}:scenario')},"]
        body += [f"{_INDENT * 2}{_literal(f'measured by quirks parity on {self.where}')},", f"{_INDENT}),", "),"]
        body += ["examples=(", *(f"{_INDENT}{line}" for line in self._examples()), "),"]
        if rivals := sorted({rival for change in self.changes for rival in change.rivals}):
            body.append(f"supersedes=({', '.join(map(_literal, rivals))},),  # they require the contrary")
        body.append('since="0.1.0",')
        yield from (f"{_INDENT}{line}" for line in body)
        yield ")"

    def _examples(self) -> Iterator[str]:
        model = {"model_type": self.model_type} if self.model_type else {}
        packages = {"vllm": self.version} if self.version else {}
        settings = {change.slot: change.found for change in self.changes if change.match and change.found is not None}
        as_measured = {"config": model, "settings": settings, "packages": packages, "purpose": self.context.purpose}
        yield from _example("YES", as_measured)
        other = "eval" if self.context.purpose == "serve" else "serve"
        yield from _example("NO", {**as_measured, "purpose": other})
        if model:
            yield from _example("NO", {**as_measured, "config": {"model_type": f"not_{self.model_type}"}})
        if model or packages:
            yield from _example("UNKNOWN", {**as_measured, "config": {}, "packages": {}})

    def _scenario(self) -> Iterator[str]:
        rollout = self.context.purpose == "rollout"
        temperature = self.context.settings.get("sampling.temperature", 1.0)
        values: dict[str, Any] = {} if rollout else {"purpose": self.context.purpose}
        values["sampling"] = {"temperature": temperature}
        kind = self.model_type if self.model_type in KINDS else "qwen3"
        yield "async def scenario(lab: Lab) -> Outcome:"
        body = [
            '"""The logprobs of a rollout are those of the trainer."""',
            f"# TODO: make of this what the scenario {self.scenario} of quirks parity does, as small as it can be.",
            f"model = lab.checkpoint({_literal(kind)})" + ("" if kind == self.model_type else "  # TODO: your model"),
            "trainer = lab.trainer(model)",
            f"async with lab.worker(model, {_literal(values)}) as worker:",
            *([f"{_INDENT}await worker.refit_async(trainer)"] if rollout else []),
            f"{_INDENT}got = await lab.{'sample' if temperature else 'greedy'}(worker)",
            f"return lab.close_logprobs(got, lab.rescored(trainer, got, {_literal(temperature or 1.0)}))",
        ]
        yield from (f"{_INDENT}{line}" for line in body)


def _example(answer: str, facts: Mapping[str, Any]) -> list[str]:
    given = [f"{_INDENT}{name}={_literal(value)}," for name, value in facts.items() if value]
    return ["Example(", f"{_INDENT}answer=Answer.{answer},", *given, "),"]


def _paragraph(text: str) -> list[str]:
    """Lines of a docstring."""
    escaped = text.replace("\\", "\\\\").replace('"""', "'''")
    return textwrap.wrap(escaped, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _shown(value: Any) -> str:
    return "left open" if value is None else str(value)


def _literal(value: Any) -> str:
    """A Python literal with the quotes that ruff prefers."""
    if isinstance(value, str):
        return repr(value) if '"' in value or "\\" in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
