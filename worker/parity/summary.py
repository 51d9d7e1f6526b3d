"""What a report comes to: its headline, and its ladder with the effect of every step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worker.parity.figures import Level, bound, crossed, measured, number, plain, strain, taken, verdicts_of, visible
from worker.parity.records import Attribution, Coverage, Report, Result, Step, Verdict
from worker.parity.settings import JOINT

Effect = Literal["restores", "worsens", "moves", "none", "error"]

#: Scenarios that a headline names; one more is named rather than counted.
_NAMED = 4
_RANK: dict[Effect, int] = {"restores": 0, "worsens": 1, "moves": 2, "none": 3, "error": 4}


@dataclass(frozen=True, slots=True)
class Headline:
    """A report in two sentences.

    Attributes:
        level: ``ok``, ``warn`` or ``fail``.
        verdict: Whether parity holds, and where it does not.
        advice: What to do about it.
    """

    level: Level
    verdict: str
    advice: str


@dataclass(frozen=True, slots=True)
class Tried:
    """A step of the ladder with the metric that tells most about it.

    Attributes:
        step: The step.
        effect: ``restores``, ``worsens``, ``moves`` (a metric, but no verdict), ``none``, or ``error``: not tried.
        says: The effect in words, with the scenarios.
        scenario: Where the metric was measured; empty if nowhere.
        metric: The metric's name; empty if there is none.
        before: Its value in the user's run.
        after: Its value with the setting changed.
        strain_before: How much of the metric's limit the run's value takes; NaN without a limit.
        strain_after: The same with the setting changed.
    """

    step: Step
    effect: Effect
    says: str
    scenario: str = ""
    metric: str = ""
    before: float = math.nan
    after: float = math.nan
    strain_before: float = math.nan
    strain_after: float = math.nan


def headline(report: Report) -> Headline:
    """Says in one sentence whether parity holds, and in another what to do."""
    said = _headline(report)
    return Headline(said.level, visible(said.verdict), visible(said.advice))


def _headline(report: Report) -> Headline:
    counted = [result for result in report.results if result.gates and result.status != "skipped"]
    broken = [result for result in counted if result.level == "fail"]
    if not counted:
        return Headline(
            "fail", "Nothing that counts was measured, so parity is unknown.", "Each scenario says why it was left out."
        )
    if broken:
        return Headline("fail", _broken(broken, counted), _remedy(report, broken))
    warned = [result for result in counted if result.level == "warn"]
    scenarios = "in the one scenario that counts" if len(counted) == 1 else f"in all {len(counted)} scenarios that count"
    if warned:
        worst = crossed(warned[0])[0]
        return Headline(
            "warn",
            f"Parity holds {scenarios}, with warnings in {_names([result.scenario for result in warned])}.",
            f"Watch {worst.metric}: {_against(worst)} in {warned[0].scenario}.",
        )
    return Headline(
        "ok", f"Parity holds {scenarios}.", "Nothing to do; measure again after a change of model, version or setting."
    )


def _names(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:_NAMED])} and {rest} more"


def _against(verdict: Verdict) -> str:
    return f"{number(verdict.value)}, where {bound(verdict)} is asked for"


def _broken(broken: list[Result], counted: list[Result]) -> str:
    text = f"Parity is broken in {len(broken)} of {len(counted)} scenarios: {_names([result.scenario for result in broken])}"
    found = [(taken(item), item, result) for result in broken for item in crossed(result)[:1]]
    if not found:
        return f"{text}."
    _, verdict, result = max(found, key=lambda item: item[0])
    return f"{text}; {verdict.metric} in {result.scenario} is {_against(verdict)}."


def _remedy(report: Report, broken: list[Result]) -> str:
    cures = [item for item in report.attributions if item.restores]
    if cures:
        cure = cures[0]
        settings = " and ".join(f"{name} to {after} (now {before})" for name, before, after in changes(cure))
        restored = "all of them" if {result.scenario for result in broken} == set(cure.restores) else _names(cure.restores)
        return f"Set {settings}: that restores {restored}. {_covering(cure)}"
    unmeasured = [result for result in broken if result.status == "failed"]
    if len(unmeasured) == len(broken):
        return f"First make it run; {unmeasured[0].scenario}: {visible(unmeasured[0].reason)}"
    if not report.ladder:
        return "Find the setting: run it again with --attribute."
    return "No setting of the ladder restores it alone: look at the worst tokens, and at the weights with quirks audit MODEL."


def _covering(cure: Attribution) -> str:
    if cure.skeleton:
        return "No quirk does so for this run; the report has a skeleton of one."
    if not cure.quirks:
        return "No quirk does so."
    quirk = cure.quirks[0]
    return f"Quirk {quirk.id} does so ({state_of(quirk)}){f': {quirk.switch}' if quirk.switch else ''}".rstrip(".") + "."


def state_of(quirk: Coverage) -> str:
    """Writes a quirk's state as words."""
    return quirk.state.replace("_", " ")


def changes(item: Attribution | Step) -> tuple[tuple[str, str, str], ...]:
    """Returns what is changed together: names, and values before and after as texts."""
    names = item.setting.split(JOINT)
    if len(names) == 1:
        return ((visible(item.setting), plain(item.before), plain(item.after)),)
    before, after = (
        [*map(plain, side)] if isinstance(side, list | tuple) else [plain(side)] for side in (item.before, item.after)
    )
    rows = itertools.zip_longest(names, before[: len(names)], after[: len(names)], fillvalue=plain(None))
    return tuple((visible(name), old, new) for name, old, new in rows)


def brief(item: Attribution | Step) -> str:
    """Writes a change on one short line: the last part of each name, and the new value."""
    return ", ".join(f"{name.rpartition('.')[2]} = {after}" for name, _, after in changes(item))


def tried(report: Report) -> list[Tried]:
    """Returns the ladder: what restores parity first, the strongest first; what could not be tried last."""
    order = {(item.setting, plain(item.after)): place for place, item in enumerate(report.attributions)}
    found = [_tried(report, step) for step in report.ladder]
    last = len(order)
    return sorted(found, key=lambda item: (_RANK[item.effect], order.get((item.step.setting, plain(item.step.after)), last)))


def _tried(report: Report, step: Step) -> Tried:
    if step.error:
        return Tried(step, "error", visible(step.error))
    item = next((item for item in report.attributions if item.setting == step.setting and item.after == step.after), None)
    effect, says = _effect(item)
    before = {result.scenario: result for result in measured(report)}
    after = {result.scenario: result for result in step.results if result.status == "measured" and result.scenario in before}
    if item is not None:
        scenario, metric, values = item.scenario, item.metric, (item.value_before, item.value_after)
    elif after:
        scenario, metric = _telling(report, [before[name] for name in after])
        nothing = math.nan
        values = before[scenario].metrics.get(metric, nothing), after[scenario].metrics.get(metric, nothing)
    else:
        return Tried(step, effect, says)
    limits = verdicts_of(before[scenario], metric) if scenario in before else []
    strains = [strain(limits[0], value) if limits else math.nan for value in values]
    return Tried(step, effect, says, scenario, metric, *values, *strains)


def _effect(item: Attribution | None) -> tuple[Effect, str]:
    if item is None:
        return "none", "no effect"
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("restores", item.restores), ("worsens", item.worsens)) if names]
    # What cures one scenario and breaks another is no cure.
    return "worsens" if item.worsens else "restores" if item.restores else "moves", "; ".join(parts) or "moves, within limits"


def _telling(report: Report, candidates: list[Result]) -> tuple[str, str]:
    """Chooses scenario and metric for a step without effect: those of the strongest step, or the most strained ones."""
    for item in report.attributions:
        if any(result.scenario == item.scenario for result in candidates):
            return item.scenario, item.metric
    found = [(taken(verdict), result.scenario, verdict.metric) for result in candidates for verdict in result.verdicts]
    if not found:
        return candidates[0].scenario, "mean_abs_delta"
    _, scenario, metric = max(found, key=lambda item: item[0])
    return scenario, metric
