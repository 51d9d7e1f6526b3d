"""The ladder: changes one setting at a time, measures what failed anew, and says which setting moves parity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quirks_core.errors import QuirksError
from worker.parity.attribution import attributions, distance
from worker.parity.records import Result, Step
from worker.parity.rung import Rung, rungs

__all__ = ["Done", "Measure", "Rung", "Tell", "attributions", "climb", "rungs"]

#: Most settings that are changed together.
_MOST_TOGETHER = 3
#: Most combinations that are tried for one scenario.
_MOST_TRIES = 4
#: A setting that brings a scenario no nearer than this share of its distance is no part of a combination.
_LEAST_GAIN = 0.02


class Measure(Protocol):
    """Measures scenarios with a rung's change in force."""

    async def __call__(self, rung: Rung, scenarios: Sequence[str], /) -> Sequence[Result]:
        """Returns a result for each scenario.

        Raises:
            QuirksError: It cannot be measured; the ladder notes why and goes on.
        """


class Tell(Protocol):
    """Tells the user what comes next."""

    def __call__(self, text: str, /) -> object:
        """Takes one line."""


class Done(Protocol):
    """Keeps finished steps, so that a run that was broken off goes on; `worker.parity.store.Store` is one."""

    def get(self, name: str, kind: type[Step]) -> Step | None:
        """Returns a step that was kept; None if there is none."""

    def put(self, name: str, piece: Step) -> None:
        """Keeps a step."""


async def climb(
    rungs: Sequence[Rung],
    baseline: Sequence[Result],
    measure: Measure,
    *,
    tell: Tell = lambda _: None,
    store: Done | None = None,
    everything: bool = False,
) -> list[Step]:
    """Measures every rung, then combinations for scenarios that no single setting restores.

    Args:
        rungs: What to try, in this order.
        baseline: The results of the user's run.
        measure: Measures scenarios.
        tell: Called before each rung.
        store: Keeps steps that were measured; those that could not be are tried again.
        everything: Measure every scenario, not only those that failed.

    Returns:
        A step for each rung and each combination, in the order in which they were tried.
    """
    climber = _Climber(rungs, baseline, measure, tell, store, everything)
    for rung in rungs:
        await climber.step(rung)
    for scenario in climber.failing:
        await climber.combine(scenario)
    return list(climber.steps.values())


@dataclass(slots=True)
class _Climber:
    """What is known while the ladder is climbed."""

    rungs: Sequence[Rung]
    baseline: Sequence[Result]
    measure: Measure
    tell: Tell
    store: Done | None
    everything: bool
    steps: dict[str, Step] = field(default_factory=dict)  # by the rungs' keys
    measured: dict[tuple[str, str], str] = field(default_factory=dict)  # a rung's key by what it came to

    @property
    def failing(self) -> list[str]:
        """The scenarios that count and failed."""
        return [result.scenario for result in self.baseline if result.gates and result.level == "fail"]

    @property
    def scenarios(self) -> list[str]:
        """Those to measure anew: all that count if none failed."""
        counting = [result for result in self.baseline if result.gates and result.status != "skipped"]
        names = [result.scenario for result in counting] if self.everything else self.failing
        return names or [result.scenario for result in counting]

    async def step(self, rung: Rung) -> Step:
        """Tries a rung, unless an earlier run did."""
        name = f"ladder: {rung.key}: {', '.join(self.scenarios)}"
        found = self.store.get(name, Step) if self.store else None
        if found is None:
            found = await self._step(rung)
            if self.store and not found.error:
                self.store.put(name, found)
        self.steps[rung.key] = found
        if not found.error:
            self.measured.setdefault((rung.how, rung.effect), rung.key)
        return found

    async def _step(self, rung: Rung) -> Step:
        step = Step(setting=rung.setting, before=rung.before, after=rung.after, how=rung.how, error=rung.error)
        if step.error:
            self.tell(f"{rung.key}: cannot be tried: {step.error}")
            return step
        if (same := self.measured.get((rung.how, rung.effect))) is not None:
            self.tell(f"{rung.key}: comes to the same run as {same}")
            return step.model_copy(update={"results": self.steps[same].results})
        self.tell(f"{rung.key} ({rung.how}){_also(rung)}")
        try:
            return step.model_copy(update={"results": tuple(await self.measure(rung, self.scenarios))})
        except QuirksError as error:
            return step.model_copy(update={"error": str(error)})

    async def combine(self, scenario: str) -> None:
        """Puts the settings together that bring a scenario nearest, one more at a time, until it is restored."""
        order = self._by_gain(scenario)
        if len(order) < 2 or any(self._restores(step, scenario) for step in self.steps.values()):
            return
        best, tries = order[0], 0
        for other in order[1:]:
            together = best.combined(other)
            if together is None or len(together.changes) > _MOST_TOGETHER:
                continue
            if tries == _MOST_TRIES:
                return
            tries += 1
            step = self.steps.get(together.key) or await self.step(together)
            if self._restores(step, scenario):
                return
            if self._left(step, scenario) < self._left(self.steps[best.key], scenario):
                best = together

    def _by_gain(self, scenario: str) -> list[Rung]:
        """The rungs that bring a scenario nearer, the nearest first."""
        left = [(self._left(self.steps[rung.key], scenario), rung) for rung in self.rungs]
        return [rung for share, rung in sorted(left, key=lambda item: item[0]) if share < 1 - _LEAST_GAIN]

    def _left(self, step: Step, scenario: str) -> float:
        """The share of the distance from parity that is left in a scenario; infinite if it was not measured."""
        before = next(result for result in self.baseline if result.scenario == scenario)
        after = next((result for result in step.results if result.scenario == scenario), None)
        if after is None or after.status != "measured" or before.status != "measured":
            return math.inf
        return distance(before, after)

    def _restores(self, step: Step, scenario: str) -> bool:
        found = [result for result in step.results if result.scenario == scenario and result.status == "measured"]
        return bool(found) and found[0].level != "fail"


def _also(rung: Rung) -> str:
    changes = ", ".join(f"{slot}: {before} to {after}" for slot, (before, after) in rung.also.items())
    return f"; quirks then change {changes}" if changes else ""
