"""The result of an ablation: which settings affect parity, in which direction, and which quirks cover them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quirks_core.base.json_values import canonical
from quirks_core.plan.records import Plan
from quirks_core.plugins.registry import Registry
from worker.lab.attribution.coverage import covering
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.records import Attribution, Result, Step, worst_level

#: Metric of a scenario that failed to run: 1 if it did. Not one of `METRICS`, because nothing was measured.
FAILED = "failed"

#: A metric that is closer to its ideal than this counts as equal to it: the noise of float32.
_NOISE = 1e-5
#: A metric whose distance to its ideal changes by less than this factor has not moved, unless it crosses a threshold.
_LEAST_FACTOR = 1.5


class _Move(NamedTuple):
    """How one metric of one scenario moved; a step is reported with its largest move."""

    crossed: int  # 2 into or out of failing, 1 another threshold, 0 none
    factor: float
    nearer: bool
    scenario: str
    metric: str
    before: float
    after: float


def distance(before: Result, after: Result) -> float:
    """Returns the share of a scenario's distance from parity that is left: the geometric mean over the metrics that failed.

    Returns:
        1 if nothing moved, less if it is nearer.
    """
    failed = {verdict.metric for verdict in before.verdicts if verdict.level == "fail"}
    logs = [math.log(_far(name, after) / _far(name, before)) for name in sorted(failed) if _is_judged(name, before, after)]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def attributions(baseline: Sequence[Result], steps: Sequence[Step], plan: Plan, registry: Registry) -> tuple[Attribution, ...]:
    """Finds the steps that affect parity.

    Returns:
        Those that restore something first, then those that move a metric by the largest factor.
    """
    before = {result.scenario: result for result in baseline}
    found = []
    for step in steps:
        both = [(before[after.scenario], after) for after in step.results if after.scenario in before]
        seen = _Seen(step, tuple(pair for pair in both if "skipped" not in (pair[0].status, pair[1].status)))
        if (move := seen.greatest) is not None:
            found.append((move, _attribution(seen, move, plan, registry)))
    found.sort(key=lambda item: (not item[1].restores, -item[0].factor, item[1].setting, canonical(item[1].after)))
    return tuple(attribution for _, attribution in found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A step compared with the user's run: for each scenario of both, the results without and with the step's setting."""

    step: Step
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


def _attribution(seen: _Seen, move: _Move, plan: Plan, registry: Registry) -> Attribution:
    return Attribution(
        scenario=move.scenario,
        metric=move.metric,
        setting=seen.step.setting,
        before=seen.step.before,
        after=seen.step.after,
        value_before=move.before,
        value_after=move.after,
        restores=seen.restores,
        worsens=seen.worsens,
        quirks=covering(seen.step, plan, registry),
    )


def _moves(before: Result, after: Result) -> Iterator[_Move]:
    """The moves of one scenario's metrics beyond noise."""
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
    """How far a metric is from its value at parity."""
    return max(abs(result.metrics[name] - METRICS[name].ideal), _NOISE)
