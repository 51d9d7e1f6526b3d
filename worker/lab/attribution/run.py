"""Changes one setting at a time, repeats the scenarios that failed, and reports which settings affect parity."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from quirks_core.base.errors import QuirksError
from quirks_core.base.json_values import canonical
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.records import Plan
from quirks_core.plugins.registry import Registry
from worker.lab.attribution.coverage import covering
from worker.lab.attribution.variant import Start, Variant, variants
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.records import Attribution, Change, Notify, Report, Result, Step, worst_level
from worker.lab.parity.run import Options, ParityRun

#: Metric of a scenario that failed to run: 1 if it did. Not one of `METRICS`, because nothing was measured.
FAILED = "failed"

#: A metric that is closer to its ideal than this counts as equal to it: the noise of float32.
_NOISE = 1e-5
#: A metric whose distance to its ideal changes by less than this factor has not moved, unless it crosses a threshold.
_LEAST_FACTOR = 1.5

#: Measures scenarios with a variant's change applied. If it raises a `QuirksError`, the ablation continues with the next
#: variant.
Measure: TypeAlias = Callable[[Variant, Sequence[str]], Awaitable[Sequence[Result]]]


async def run(
    config: GenerationConfig,
    options: Options,
    *,
    settings: Sequence[str] = (),
    notify: Notify = lambda _: None,
) -> Report:
    """Measures parity as `worker.lab.parity.run` does, then the effect of each of these settings (all if empty), changed alone.

    It starts no engine for settings that are left when others have restored every scenario that failed, unless `every` one is
    wanted, or `settings` are given.

    Raises:
        UsageError, RefusedError, EngineStartError: As for `worker.lab.parity.run`; also if a setting does not exist.
    """
    parity = ParityRun(config, options, notify=notify)
    start = Start(parity.config, parity.plan, parity.registry, options.planning)
    variants(start, only=settings)  # fails here if a setting does not exist
    results = await parity.baseline()
    before = {result.scenario: result for result in results}

    async def measure(variant: Variant, names: Sequence[str]) -> list[Result]:
        assert variant.plan is not None  # noqa: S101  # one without is not measured
        if variant.how == "rescore":
            return await parity.rescored([before[name] for name in names], variant.plan)
        return await parity.on_another_engine(variant.config, variant.planning, names)

    found = variants(start, only=settings, engine={**parity.reported, "engine.dtype": parity.dtype})
    steps = await run_variants(found, results, measure, every=bool(settings), notify=notify)
    return parity.report(results, steps, attributions(results, steps, parity.plan, parity.registry))


async def run_variants(
    variants: Sequence[Variant],
    baseline: Sequence[Result],
    measure: Measure,
    *,
    every: bool = False,
    notify: Notify = lambda _: None,
) -> list[Step]:
    """Measures every variant in this order."""
    ablation = _Ablation(baseline, measure, notify)
    for number, variant in enumerate(variants, start=1):
        ablation.place = f"{number}/{len(variants)} "
        restored = "" if every or variant.how != "restart" else ablation.restored_by
        step = ablation.steps[variant.key] = await ablation.step(variant, unless=restored)
        if not step.error:
            ablation.measured.setdefault((variant.how, variant.effect), variant.key)
    return list(ablation.steps.values())


@dataclass(slots=True)
class _Ablation:
    """The state of an ablation while variants are measured."""

    baseline: Sequence[Result]
    measure: Measure
    notify: Notify
    steps: dict[str, Step] = field(default_factory=dict)  # by the variants' keys
    measured: dict[tuple[str, str], str] = field(default_factory=dict)  # a variant's key by its effect
    place: str = ""  # which of how many variants is tried, as the beginning of a line

    @property
    def failing(self) -> list[str]:
        """The scenarios that count and failed."""
        return [result.scenario for result in self.baseline if result.gates and result.level == "fail"]

    @property
    def scenarios(self) -> list[str]:
        """The scenarios to repeat: those that failed, or all that count if none failed."""
        return self.failing or [result.scenario for result in self.baseline if result.counts]

    @property
    def restored_by(self) -> str:
        """The settings that together restore every scenario that failed, each alone some of them; empty if one is left."""
        names: dict[str, None] = {}
        for scenario in self.failing:
            setting = next((step.setting for step in self.steps.values() if _restores(step, scenario)), None)
            if setting is None:
                return ""
            names[setting] = None
        return " and ".join(names)

    async def step(self, variant: Variant, *, unless: str) -> Step:
        """Tries a variant, unless the settings `unless` made it unnecessary."""
        step = Step(**variant.change.model_dump(), how=variant.how, error=variant.error)
        if step.error:
            self.notify(f"{self.place}{variant.key}: cannot be tried: {step.error}")
            return step
        if (same := self.measured.get((variant.how, variant.effect))) is not None:
            self.notify(f"{self.place}{variant.key}: gives the same run as {same}")
            return step.model_copy(update={"results": self.steps[same].results})
        if unless:
            return step.model_copy(update={"error": f"all that failed is restored by {unless}; --setting NAME tries it"})
        also = ", ".join(f"{slot}: {before} to {after}" for slot, (before, after) in variant.also.items())
        self.notify(f"{self.place}{variant.key} ({variant.how}){f'; quirks then change {also}' if also else ''}")
        begun = time.monotonic()
        try:
            results = tuple(await self.measure(variant, self.scenarios))
        except QuirksError as error:
            return step.model_copy(update={"error": str(error)})
        return step.model_copy(update={"results": results, "seconds": time.monotonic() - begun})


def _restores(step: Step, scenario: str) -> bool:
    return any(result.status == "measured" and result.level != "fail" for result in step.results if result.scenario == scenario)


# ---- what the steps show


class _Move(NamedTuple):
    """How one metric of one scenario moved; a step is reported with its largest move."""

    crossed: int  # 2 into or out of failing, 1 another threshold, 0 none
    factor: float
    nearer: bool
    scenario: str
    metric: str
    before: float
    after: float


def attributions(baseline: Sequence[Result], steps: Sequence[Step], plan: Plan, registry: Registry) -> tuple[Attribution, ...]:
    """Finds the steps that affect parity.

    Returns:
        Those that restore something first, then those that move a metric by the largest factor.
    """
    before = {result.scenario: result for result in baseline}
    found = []
    for step in steps:
        both = [(before[after.scenario], after) for after in step.results if after.scenario in before]
        seen = _Seen(tuple(pair for pair in both if "skipped" not in (pair[0].status, pair[1].status)))
        if (move := seen.greatest) is not None:
            moved = {"scenario": move.scenario, "metric": move.metric, "value_before": move.before, "value_after": move.after}
            what = step.model_dump(include=set(Change.model_fields))
            sides = {"restores": seen.restores, "worsens": seen.worsens, "quirks": covering(step, plan, registry)}
            found.append((move, Attribution(**what, **moved, **sides)))
    found.sort(key=lambda item: (not item[1].restores, -item[0].factor, item[1].setting, canonical(item[1].after)))
    return tuple(attribution for _, attribution in found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A step compared with the user's run: for each scenario of both, the results without and with the step's setting."""

    pairs: tuple[tuple[Result, Result], ...]

    @property
    def restores(self) -> tuple[str, ...]:
        failed = [(old, new) for old, new in self.pairs if old.gates and old.level == "fail"]
        return tuple(old.scenario for old, new in failed if new.level != "fail")

    @property
    def worsens(self) -> tuple[str, ...]:
        fails = [(old, new) for old, new in self.pairs if new.gates and new.level == "fail"]
        return tuple(old.scenario for old, new in fails if old.level != "fail")

    @property
    def greatest(self) -> _Move | None:
        """The largest move: among restored scenarios if there are any, else among worse ones. None if all is noise."""
        moves = [move for pair in self.pairs for move in _moves(*pair)]
        for names, nearer in ((self.restores, True), (self.worsens, False)):
            if chosen := [move for move in moves if move.scenario in names and move.nearer is nearer]:
                moves = chosen
                break
        # The first of equal moves, in the order of the scenarios, then of the metrics.
        return max(moves, key=lambda move: (move.crossed, move.factor), default=None)


def _moves(before: Result, after: Result) -> Iterator[_Move]:
    if before.status != after.status:
        runs = after.status == "measured"
        yield _Move(2, math.inf, runs, before.scenario, FAILED, float(runs), float(not runs))
        return
    for name in filter(lambda name: _is_judged(name, before, after), METRICS):
        old, new = _far(name, before), _far(name, after)
        levels = {worst_level(result.verdicts, name) for result in (before, after)}
        crossed = 0 if len(levels) == 1 else 2 if "fail" in levels else 1
        factor = max(old / new, new / old)
        if crossed or factor >= _LEAST_FACTOR:
            yield _Move(crossed, factor, new < old, before.scenario, name, before.metrics[name], after.metrics[name])


def _is_judged(name: str, *results: Result) -> bool:
    """Whether every result has a metric, some verdict uses it, and it measures how far apart the sides are."""
    judged = {verdict.metric for result in results for verdict in result.verdicts}
    return name in judged and METRICS[name].better != "any" and all(name in result.metrics for result in results)


def _far(name: str, result: Result) -> float:
    return max(abs(result.metrics[name] - METRICS[name].ideal), _NOISE)
