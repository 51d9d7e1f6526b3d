"""The summary of a report: its headline, the crossed limits, and the ablation with the effect of every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from quirks_core.base.text import listed
from worker.lab.parity.notation import bound, number, plain
from worker.lab.parity.records import LEVELS, Attribution, Change, Coverage, Level, Report, Result, Step, Verdict
from worker.lab.parity.thresholds import strain

Effect = Literal["restores", "worsens", "moves", "none", "error"]

#: Scenarios that a headline names; one more is named rather than counted.
_NAMED = 4
_EFFECTS: tuple[Effect, ...] = ("restores", "worsens", "moves", "none", "error")


# ---- verdicts


def crossed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Returns the worst verdict on each metric that is not ``ok``: failures first, then by strain."""
    worst: dict[str, Verdict] = {}
    for verdict in sorted(verdicts, key=lambda item: (-LEVELS.index(item.level), -strain(item))):
        if verdict.level != "ok":
            worst.setdefault(verdict.metric, verdict)
    return list(worst.values())


def limits_of(results: Iterable[Result], metric: str) -> list[Verdict]:
    """Returns one verdict for each threshold of a metric, from low to high: it knows limit and source."""
    found = {item.threshold: item for result in results for item in result.verdicts if item.metric == metric}
    return sorted(found.values(), key=lambda item: (item.limit, item.threshold))


# ---- the headline


@dataclass(frozen=True, slots=True)
class Headline:
    """A report in two sentences: whether parity holds and where it does not, and what to do about it."""

    level: Level
    verdict: str
    advice: str


def headline(report: Report) -> Headline:
    """Returns whether parity holds, in one sentence, and what to do, in another."""
    counted = report.counted
    if not counted:
        unknown = "Nothing that counts was measured, so parity is unknown."
        return Headline("fail", unknown, "Each scenario shows why it was left out.")
    if broken := [result for result in counted if result.level == "fail"]:
        return Headline("fail", _broken(broken, counted), _remedy(report, broken))
    if rounded := [result for result in counted if result.level == "rounding"]:
        return Headline("rounding", *_rounding(rounded, counted))
    where = "in the one scenario that counts" if len(counted) == 1 else f"in all {len(counted)} scenarios that count"
    if warned := [result for result in counted if result.level == "warn"]:
        verdict = f"Parity holds {where}, with warnings in {listed([result.scenario for result in warned], _NAMED)}."
        worst = crossed(warned[0].verdicts)[0]
        return Headline("warn", verdict, f"Watch {worst.metric}: {_against(worst)}, in {warned[0].scenario}.")
    nothing = "Nothing to do; measure again after a change of model, version or setting."
    return Headline("ok", f"Parity holds {where}.", nothing)


def _against(verdict: Verdict) -> str:
    return f"{number(verdict.value, verdict.limit)}, limit {bound(verdict)}"


def _rounding(rounded: list[Result], counted: list[Result]) -> tuple[str, str]:
    verdict, result = max(((crossed(result.verdicts)[0], result) for result in rounded), key=lambda item: strain(item[0]))
    mean = f"{number(result.metrics['mean_abs_delta'])} nats, {number(result.rounding['mean_abs_delta'])} from rounding alone"
    found = (
        f"Parity holds but for rounding, which crosses limits in {len(rounded)} of {len(counted)} scenarios: "
        f"{listed([one.scenario for one in rounded], _NAMED)}; {verdict.metric} in {result.scenario} is {_against(verdict)}; "
        f"mean |Δ| {mean}."
    )
    return found, "quirks parity explain measures which dtypes of engine and trainer are closer, and what they cost."


def _broken(broken: list[Result], counted: list[Result]) -> str:
    names = listed([result.scenario for result in broken], _NAMED)
    text = f"Parity is broken in {len(broken)} of {len(counted)} scenarios: {names}"
    found = [(verdict, result) for result in broken for verdict in crossed(result.verdicts)[:1]]
    if not found:
        return f"{text}."
    verdict, result = max(found, key=lambda item: strain(item[0]))
    return f"{text}; {verdict.metric} in {result.scenario} is {_against(verdict)}."


def _remedy(report: Report, broken: list[Result]) -> str:
    if cure := next((item for item in report.attributions if item.restores), None):
        settings = " and ".join(f"{name} to {after} (now {before})" for name, before, after in changes(cure))
        restored = (
            "all of them" if {result.scenario for result in broken} == set(cure.restores) else listed(cure.restores, _NAMED)
        )
        return f"Set {settings}: that restores {restored}. {_covering(cure)}"
    if all(result.status == "failed" for result in broken):
        return f"First fix the failure; {broken[0].scenario}: {broken[0].reason}"
    if not report.steps:
        return "To find the setting, run it again with --attribute."
    if _wrong_from_disk(report, broken):
        return (
            "Not the refit: the engine's model itself, loaded from disk, differs in cold-start; no setting restores it alone: "
            "compare it with another version of vLLM (quirks migrate)."
        )
    return "No setting restores it alone: look at the worst tokens, and at the weights with quirks audit MODEL."


def _wrong_from_disk(report: Report, broken: list[Result]) -> bool:
    """Returns whether an engine that loaded the checkpoint fails before any refit: the user's, or one of the ablation."""
    tried = any(step.setting == "engine.load_format" and not step.error for step in report.steps)
    from_disk = tried or report.settings.get("engine.load_format") not in (None, "dummy")
    return from_disk and any(result.scenario == "cold-start" for result in broken)


def _covering(cure: Attribution) -> str:
    if cure.is_uncovered:
        return "No quirk sets it for this run; quirks new NAME starts one."
    quirk = cure.quirks[0]
    return f"Quirk {quirk.id} sets it ({state_of(quirk)}): {quirk.because}."


# ---- the ablation


@dataclass(frozen=True, slots=True)
class Tried:
    """A step with its effect."""

    step: Step  #: the step
    effect: Effect  #: ``restores``, ``worsens``, ``moves`` (a metric, but no verdict), ``none``, or ``error``: not tried
    says: str  #: the effect in words, with the scenarios
    moved: Attribution | None = None  #: what it moves most; None if nothing


def tried(report: Report) -> list[Tried]:
    """Returns the steps: what restores parity first, the strongest first; what could not be tried last."""
    moved = {_key(item): item for item in report.attributions}
    order = list(moved)
    found = []
    for step in report.steps:
        item = moved.get(_key(step))
        found.append(Tried(step, "error", step.error) if step.error else Tried(step, *_effect(item), item))
    return sorted(found, key=lambda one: (_EFFECTS.index(one.effect), order.index(_key(one.step)) if one.moved else 0))


def _key(item: Change) -> tuple[str, str]:
    return item.setting, plain(item.after)


def _effect(item: Attribution | None) -> tuple[Effect, str]:
    if item is None:
        return "none", "no effect"
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("restores", item.restores), ("worsens", item.worsens)) if names]
    # A setting that restores one scenario and breaks another does not count as restoring.
    return "worsens" if item.worsens else "restores" if item.restores else "moves", "; ".join(parts) or "moves, within limits"


def state_of(quirk: Coverage) -> str:
    """Writes a quirk's state as words."""
    return quirk.state.replace("_", " ")


def changes(item: Change) -> list[tuple[str, str, str]]:
    """Writes what is changed together: names, and values before and after."""
    return [(name, plain(before), plain(after)) for name, before, after in item.parts]
