"""A rung of the ladder: the user's run with one setting changed, resolved, but not started."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quirks_core.context import RunContext
from quirks_core.errors import QuirksError, UsageError, nearest
from quirks_core.plan import Plan, State, canonical
from quirks_core.registry import Registry
from quirks_core.slots import SLOTS
from quirks_core.switches import Switches, Wishes
from quirks_core.trace import Answer
from worker.config import GenerationConfig
from worker.parity.settings import JOINT, QUIRK, SETTINGS, How, InForce, changed

_COSTS: Mapping[How, int] = {"rescore": 0, "refit": 1, "restart": 2}
#: Slots that have nothing to do with what is computed.
_BESIDE = ("cluster.", "request.")


@dataclass(frozen=True, slots=True)
class Start:
    """The user's run, which every rung changes.

    Attributes:
        config: The configuration.
        plan: The plan for it.
        registry: The quirks.
        wishes: The switches of the call.
    """

    config: GenerationConfig
    plan: Plan
    registry: Registry
    wishes: Wishes


@dataclass(frozen=True, slots=True)
class Change:
    """One part of a rung.

    Attributes:
        setting: A path, or ``quirk ID``.
        before: What is in force; None if nobody knows.
        after: What is tried.
    """

    setting: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Rung:
    """The user's run with something changed.

    Attributes:
        start: The user's run.
        changes: What is changed: one thing, or several together.
        how: What it takes to try it.
        config: The changed configuration.
        wishes: Switches of the call to make the worker with.
        plan: The plan for that; None if there is none.
        error: Why it cannot be tried; empty if it can.
    """

    start: Start
    changes: tuple[Change, ...]
    how: How
    config: GenerationConfig
    wishes: Wishes
    plan: Plan | None
    error: str = ""

    @classmethod
    def of(cls, start: Start, changes: Sequence[Change], how: How = "rescore") -> Rung:
        """Changes the user's run and resolves it.

        Args:
            start: The user's run.
            changes: What to change.
            how: What that takes by itself; what quirks change because of it may take more.
        """
        config, wishes, plan, error = start.config, start.wishes, None, ""
        for change in changes:
            if change.setting.startswith(QUIRK):
                wishes = _on(wishes, change.setting.removeprefix(QUIRK))
        try:
            config = changed(config, _values(changes))
            switches = Switches.gather(api=wishes, config_file=Wishes(config.quirks.disable, config.quirks.force))
            plan = start.registry.resolve(RunContext.gather(config), switches)
            plan.check()
        except QuirksError as problem:
            error = str(problem)
        rung = cls(start, tuple(changes), how, config, wishes, plan, error)
        return replace(rung, how=max((how, *map(_how, rung.also), *rung._patches_take()), key=_COSTS.__getitem__))

    @property
    def setting(self) -> str:
        """Its name, as in a `worker.parity.records.Step`."""
        return JOINT.join(change.setting for change in self.changes)

    @property
    def values(self) -> dict[str, Any]:
        """The values to type, by path; a quirk that is switched on is none of them."""
        return _values(self.changes)

    @property
    def before(self) -> Any:
        """What is in force; a list if several things change."""
        return self.changes[0].before if len(self.changes) == 1 else [change.before for change in self.changes]

    @property
    def after(self) -> Any:
        """What is tried; a list if several things change."""
        return self.changes[0].after if len(self.changes) == 1 else [change.after for change in self.changes]

    @property
    def key(self) -> str:
        """Tells it from every other rung of the same run, also in another process."""
        return f"{self.setting} = {canonical(self.after)}"

    @property
    def effect(self) -> str:
        """The same text for rungs that come to the same run: a quirk that is switched on, and the value that it sets."""
        return "" if self.plan is None else _effect(self.plan, self.config)

    @property
    def also(self) -> dict[str, tuple[Any, Any]]:
        """The slots that quirks set otherwise because of the change: their values before and after."""
        if self.plan is None:
            return {}
        old, new = self.start.plan, self.plan
        others = [slot for slot in SLOTS if slot not in self.values and not slot.startswith(_BESIDE)]
        pairs = {slot: (old.value(slot), new.value(slot)) for slot in others}
        return {slot: pair for slot, pair in pairs.items() if pair[0] != pair[1]}

    def _patches_take(self) -> list[How]:
        changed = self.plan is not None and _patches(self.plan) != _patches(self.start.plan)
        return ["restart"] if changed else []

    def combined(self, other: Rung) -> Rung | None:
        """Returns both together; None if they change the same setting."""
        if {change.setting for change in self.changes} & {change.setting for change in other.changes}:
            return None
        # The user's engine may hold what an earlier rung left there, so that a refit of it would show two things.
        how: How = "rescore" if self.how == other.how == "rescore" else "restart"
        return Rung.of(self.start, (*self.changes, *other.changes), how)


def rungs(
    config: GenerationConfig,
    plan: Plan,
    *,
    only: Sequence[str] = (),
    registry: Registry | None = None,
    wishes: Wishes | None = None,
    engine: Mapping[str, Any] | None = None,
) -> list[Rung]:
    """Returns what can be changed in a run, the cheapest first.

    Args:
        config: The user's configuration.
        plan: The plan for it.
        only: Names to take; all if empty.
        registry: The quirks; everything that is installed if None.
        wishes: The switches of the call that the plan was made with.
        engine: Values by slot that the running engine reported, for what nobody asked for.

    Raises:
        UsageError: There is no such setting.
    """
    start = Start(config, plan, registry or Registry.load(), wishes or Wishes())
    wanted = {_tidy(name) for name in only}
    _check(wanted, start.registry)
    of_settings = list(_of_settings(start, InForce.of(config, plan, engine), wanted))
    found = [*_of_quirks(start, wanted), *_without_twins(of_settings)]
    return [rung for _, rung in sorted(found, key=lambda item: item[0])]


def _without_twins(found: Sequence[tuple[tuple[int, ...], Rung]]) -> list[tuple[tuple[int, ...], Rung]]:
    """Of settings that come to the same run, because a quirk adds the rest, only the one that says all of it."""
    most: dict[str, int] = {}
    for _, rung in found:
        most[rung.effect] = max(most.get(rung.effect, 0), len(rung.changes))
    return [(order, rung) for order, rung in found if not rung.effect or len(rung.changes) == most[rung.effect]]


def _of_settings(start: Start, now: InForce, wanted: Collection[str]) -> Iterator[tuple[tuple[int, ...], Rung]]:
    """Rungs with what they are sorted by: cost, what leaves a mark last, what somebody asked for first, the list's order."""
    asked = start.plan.context.typed | {item.slot for item in start.plan.adjustments if item.in_force}
    for number, setting in enumerate(SETTINGS.values()):
        for values, how in setting.tries(now) if not wanted or setting.name in wanted else ():
            changes = [Change(path, now.value(path), value) for path, value in zip(setting.paths, values, strict=True)]
            rung = Rung.of(start, changes, how)
            lasting = rung.how == "refit" and bool(set(values) & set(setting.lasting))
            yield (_COSTS[rung.how], int(lasting), int(not asked & set(setting.paths)), number), rung


def _of_quirks(start: Start, wanted: Collection[str]) -> Iterator[tuple[tuple[int, ...], Rung]]:
    """One for each quirk that would be active, but is switched off, if it would change anything."""
    active = {verdict.id for verdict in start.plan.active}
    replaced = {name for item in start.registry.loaded if item.quirk.id in active for name in item.quirk.supersedes}
    for number, verdict in enumerate(start.plan.verdicts):
        name = QUIRK + verdict.id
        concerns = verdict.state is State.DISABLED and verdict.verdict is Answer.YES and verdict.id not in replaced
        if not concerns or (wanted and name not in wanted):
            continue
        rung = Rung.of(start, [Change(name, State.DISABLED.value, State.ACTIVE.value)])
        if rung.error or rung.effect != _effect(start.plan, start.config):
            yield (_COSTS[rung.how], 0, 0, number - len(start.plan.verdicts)), rung


def _how(slot: str) -> How:
    """What it takes to change a slot besides; a refit of another scope would leave its mark on the engine."""
    return "rescore" if slot.startswith("train.") else "refit" if slot == "refit.clear_cache" else "restart"


def _on(wishes: Wishes, quirk_id: str) -> Wishes:
    """The call's switches beat all others, and a quirk's own name beats that of its flag."""
    return Wishes(tuple(name for name in wishes.disable if name != quirk_id), (*wishes.force, quirk_id))


def _effect(plan: Plan, config: GenerationConfig) -> str:
    """What a run comes to: values, patches, and what no quirk may set."""
    values = {slot: plan.value(slot) for slot in SLOTS if not slot.startswith(_BESIDE)}
    return canonical([values, _patches(plan), dict(config.env), config.engine.vllm_kwargs])


def _patches(plan: Plan) -> list[tuple[str, str]]:
    return [(patch.target, patch.source) for patch in plan.patches]


def _values(changes: Sequence[Change]) -> dict[str, Any]:
    return {change.setting: change.after for change in changes if not change.setting.startswith(QUIRK)}


def _tidy(name: str) -> str:
    """A setting's name with single spaces: ``a+b`` is ``a + b``."""
    return JOINT.join(" ".join(part.split()) for part in name.split("+"))


def _check(wanted: set[str], registry: Registry) -> None:
    known = [*SETTINGS, *(QUIRK + item.quirk.id for item in registry.loaded)]
    if wrong := [f"{name!r}{nearest(name, known)}" for name in sorted(wanted) if name not in known]:
        raise UsageError(f"no setting of that name: {', '.join(wrong)}; there are {', '.join(SETTINGS)}, and 'quirk ID'")
