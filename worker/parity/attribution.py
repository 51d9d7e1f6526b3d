"""What the ladder shows: which settings move parity, which way, and which quirks cover them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from quirks_core.plan import Plan, canonical
from quirks_core.registry import Registry
from worker.parity.coverage import covering, covers
from worker.parity.metrics import METRICS
from worker.parity.records import Attribution, Result, Step
from worker.parity.skeleton import skeleton

#: The metric of a scenario that failed to run, 1 if it did: not one of `METRICS`, as nothing was measured.
FAILED = "failed"

#: What is nearer to its ideal than this is as good as there: the noise of float32.
_NOISE = 1e-5
#: A metric whose distance to its ideal changes by less than this factor has not moved, unless it crosses a threshold.
_LEAST_FACTOR = 1.5

_Level = Literal["ok", "warn", "fail"]
_LEVELS: Mapping[_Level, int] = {"ok": 0, "warn": 1, "fail": 2}


class _Move(NamedTuple):
    """How one metric of one scenario moved; the greatest is what a step is known by."""

    crossed: int  # 2 into or out of failing, 1 another threshold, 0 none
    factor: float
    nearer: bool
    scenario: str
    metric: str
    before: float
    after: float

    @property
    def is_noise(self) -> bool:
        return not self.crossed and self.factor < _LEAST_FACTOR


def distance(before: Result, after: Result) -> float:
    """Returns the share of a scenario's distance from parity that is left: the mean over the metrics that failed.

    Args:
        before: The scenario in the user's run.
        after: The same with something changed.

    Returns:
        1 if nothing moved, less if it is nearer; the geometric mean of the metrics' shares.
    """
    failed = {verdict.metric for verdict in before.verdicts if verdict.level == "fail"}
    logs = [math.log(_far(name, after) / _far(name, before)) for name in sorted(failed) if _is_judged(name, before, after)]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def attributions(baseline: Sequence[Result], steps: Sequence[Step], plan: Plan, registry: Registry) -> tuple[Attribution, ...]:
    """Says which steps move parity.

    Args:
        baseline: The results of the user's run.
        steps: The ladder's.
        plan: The user's plan.
        registry: The quirks.

    Returns:
        Those that restore something first, then those that move a metric by the largest factor.
    """
    before = {result.scenario: result for result in baseline}
    found = []
    for step in steps:
        seen = _Seen.of(step, before)
        if (move := seen.greatest) is not None:
            found.append((move, _attribution(seen, move, plan, registry)))
    found.sort(key=lambda item: (not item[1].restores, -item[0].factor, item[1].setting, canonical(item[1].after)))
    return tuple(attribution for _, attribution in found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A step beside the user's run.

    Attributes:
        step: The step.
        pairs: The scenarios that both have: as they were, and with the step's setting.
    """

    step: Step
    pairs: tuple[tuple[Result, Result], ...]

    @classmethod
    def of(cls, step: Step, before: Mapping[str, Result]) -> _Seen:
        both = [(before[after.scenario], after) for after in step.results if after.scenario in before]
        return cls(step, tuple(pair for pair in both if "skipped" not in (pair[0].status, pair[1].status)))

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
        """The greatest move: of what is restored if something is, else of what is worse. None if all is noise."""
        moves = [move for old, new in self.pairs for move in _moves(old, new) if not move.is_noise]
        for names, nearer in ((self.restores, True), (self.worsens, False)):
            if chosen := [move for move in moves if move.scenario in names and move.nearer is nearer]:
                moves = chosen
                break
        # The first of equals: the scenarios' order, then that of the metrics.
        return max(moves, key=lambda move: (move.crossed, move.factor), default=None)


def _attribution(seen: _Seen, move: _Move, plan: Plan, registry: Registry) -> Attribution:
    step = seen.step
    quirks = covering(step.setting, step.after, plan, registry)
    text = ""
    if seen.restores and not any(map(covers, quirks)):
        figures = _figures(*next(pair for pair in seen.pairs if pair[0].scenario == move.scenario))
        text = skeleton(plan, step.setting, step.before, step.after, move.scenario, figures)
    return Attribution(
        scenario=move.scenario,
        metric=move.metric,
        setting=step.setting,
        before=step.before,
        after=step.after,
        value_before=move.before,
        value_after=move.after,
        restores=seen.restores,
        worsens=seen.worsens,
        quirks=quirks,
        skeleton=text,
    )


def _moves(before: Result, after: Result) -> Iterator[_Move]:
    """The moves of one scenario's metrics."""
    if before.status != after.status:
        runs = after.status == "measured"
        yield _Move(2, math.inf, runs, before.scenario, FAILED, float(runs), float(not runs))
        return
    for name in METRICS:
        if _is_judged(name, before, after):
            old, new = _far(name, before), _far(name, after)
            crossed = _weight(_level(name, before), _level(name, after))
            values = before.metrics[name], after.metrics[name]
            yield _Move(crossed, max(old / new, new / old), new < old, before.scenario, name, *values)


def _weight(before: _Level, after: _Level) -> int:
    return 2 if "fail" in (before, after) and before != after else int(before != after)


def _level(name: str, result: Result) -> _Level:
    """The worst verdict on a metric."""
    return max((verdict.level for verdict in result.verdicts if verdict.metric == name), key=_LEVELS.__getitem__, default="ok")


def _is_judged(name: str, *results: Result) -> bool:
    """A metric that every result has, that some verdict rests on, and that says how far apart the sides are."""
    judged = {verdict.metric for result in results for verdict in result.verdicts}
    return name in judged and METRICS[name].better != "any" and all(name in result.metrics for result in results)


def _far(name: str, result: Result) -> float:
    """How far a metric is from its value at parity."""
    return max(abs(result.metrics[name] - METRICS[name].ideal), _NOISE)


def _figures(before: Result, after: Result) -> dict[str, tuple[float, float]]:
    """The metrics that moved beyond noise, before and after."""
    moves = sorted(
        (move for move in _moves(before, after) if not move.is_noise), key=lambda move: (-move.crossed, -move.factor)
    )
    return {move.metric: (move.before, move.after) for move in moves[:3]}
