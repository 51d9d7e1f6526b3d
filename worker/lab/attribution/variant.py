"""Variants: the user's run with one setting changed, planned, but not started."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quirks_core.base.errors import QuirksError, UsageError, nearest
from quirks_core.base.json_values import canonical
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import slot_named
from quirks_core.declaration.trace import Answer
from quirks_core.plan.records import Plan, State
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry
from worker.lab.attribution.settings import QUIRK, SETTINGS, InForce, changed
from worker.lab.parity.records import JOINT, Change, How

_COSTS: Mapping[How, int] = {"rescore": 0, "restart": 1}
#: Slots that do not affect the computation.
_BESIDE = ("cluster", "request")


@dataclass(frozen=True, slots=True)
class Start:
    """The user's run, which every variant changes: its configuration, its plan, the quirks, and the plan options."""

    config: GenerationConfig
    plan: Plan
    registry: Registry
    planning: PlanOptions


@dataclass(frozen=True, slots=True)
class Variant:
    """The user's run with something changed."""

    start: Start  #: the user's run
    change: Change  #: what is changed: one thing, or several together
    how: How  #: what is needed to try it
    config: GenerationConfig  #: the changed configuration
    planning: PlanOptions  #: its plan options
    plan: Plan | None = None  #: its plan; None if there is none
    error: str = ""  #: why it cannot be tried; empty if it can

    @classmethod
    def of(cls, start: Start, change: Change, how: How = "rescore") -> Variant:
        """Changes the user's run and makes the plan; quirks that react to the change may need more than it does."""
        planning = start.planning
        if change.setting.startswith(QUIRK):
            on = SwitchNames(force=[change.setting.removeprefix(QUIRK)])
            planning = replace(planning, switches=planning.switches.under(on, "the attribution"))
        variant = cls(start, change, how, start.config, planning)
        try:
            config = changed(start.config, variant.values)
            plan = make_plan(config, planning, registry=start.registry)
            variant = replace(variant, config=config, plan=plan)
            plan.check()
        except QuirksError as problem:
            variant = replace(variant, error=str(problem))
        return replace(variant, how=max((how, *variant._takes()), key=_COSTS.__getitem__))

    @property
    def values(self) -> dict[str, Any]:
        """The values to type, by path; a quirk that is switched on is none of them."""
        return {name: after for name, _, after in self.change.parts if not name.startswith(QUIRK)}

    @property
    def key(self) -> str:
        """Identifies the variant among those of the same run, also in another process."""
        return f"{self.change.setting} = {canonical(self.change.after)}"

    @property
    def effect(self) -> str:
        """A text that is equal for variants with the same result, such as switching a quirk on and setting its value."""
        return "" if self.plan is None else _effect(self.plan, self.config)

    @property
    def also(self) -> dict[str, tuple[Any, Any]]:
        """The slots that quirks set to another value because of the change: values before and after."""
        if self.plan is None:
            return {}
        old, new = _in_force(self.start.plan), _in_force(self.plan)
        others = sorted((old.keys() | new.keys()) - self.values.keys())
        return {slot: (old.get(slot), new.get(slot)) for slot in others if old.get(slot) != new.get(slot)}

    def _takes(self) -> Iterator[How]:
        for slot in self.also:
            yield "rescore" if slot_named(slot).family == "train" else "restart"
        if self.plan is not None and _patches(self.plan) != _patches(self.start.plan):
            yield "restart"


def variants(start: Start, *, only: Sequence[str] = (), engine: Mapping[str, Any] | None = None) -> list[Variant]:
    """Returns what can be changed in a run, the cheapest first; the engine's values apply to slots that are not set.

    Raises:
        UsageError: There is no such setting.
    """
    wanted = {JOINT.join(" ".join(part.split()) for part in name.split("+")) for name in only}  # ``a+b`` is ``a + b``
    known = [*SETTINGS, *(QUIRK + item.quirk.id for item in start.registry.loaded)]
    if wrong := [f"{name!r}{nearest(name, known)}" for name in sorted(wanted) if name not in known]:
        raise UsageError(f"no setting of that name: {', '.join(wrong)}; there are {', '.join(SETTINGS)}, and 'quirk ID'")
    found = [*_of_quirks(start, wanted), *_of_settings(start, InForce.of(start.config, start.plan, engine), wanted)]
    return [variant for _, variant in sorted(found, key=lambda item: item[0])]


#: A sort key and a variant.
_Ordered = tuple[tuple[int, ...], Variant]


def _of_settings(start: Start, now: InForce, wanted: Collection[str]) -> Iterator[_Ordered]:
    """Yields variants with their sort key: cost, likelihood (typed, not set, set by a quirk), the order of the list.

    Among equal costs, compilation comes last if the user's engine is eager: such a start takes several times as long.
    """
    is_eager = bool(start.plan.value("engine.enforce_eager"))
    typed, planned = start.plan.context.typed, {item.slot for item in start.plan.adjustments if item.in_force}
    for number, setting in enumerate(SETTINGS.values()):
        for values in setting.tries(now) if not wanted or setting.name in wanted else ():
            variant = Variant.of(start, Change.of(setting.paths, map(now.value, setting.paths), values), setting.how)
            later = is_eager and variant.plan is not None and not variant.plan.value("engine.enforce_eager")
            likely = 0 if typed & set(setting.paths) else 2 if planned & set(setting.paths) else 1
            yield (_COSTS[variant.how], int(later), likely, number), variant


def _of_quirks(start: Start, wanted: Collection[str]) -> Iterator[_Ordered]:
    """Yields a variant for each quirk that is switched off, would be active, and would change something."""
    active = {verdict.id for verdict in start.plan.active}
    replaced = {name for item in start.registry.loaded if item.quirk.id in active for name in item.quirk.supersedes}
    for number, verdict in enumerate(start.plan.verdicts):
        name = QUIRK + verdict.id
        concerns = verdict.state is State.DISABLED and verdict.verdict is Answer.YES and verdict.id not in replaced
        if not concerns or (wanted and name not in wanted):
            continue
        variant = Variant.of(start, Change(setting=name, before=State.DISABLED.value, after=State.ACTIVE.value))
        if variant.error or variant.effect != _effect(start.plan, start.config):
            yield (_COSTS[variant.how], 0, 0, number - len(start.plan.verdicts)), variant


def _in_force(plan: Plan) -> dict[str, Any]:
    values = {**plan.context.settings, **plan.changes}
    return {slot: value for slot, value in values.items() if slot_named(slot).family not in _BESIDE}


def _effect(plan: Plan, config: GenerationConfig) -> str:
    return canonical([_in_force(plan), _patches(plan), dict(config.env)])


def _patches(plan: Plan) -> list[tuple[str, str]]:
    return [(patch.target, patch.source) for patch in plan.patches]
