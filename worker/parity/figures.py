"""The figures of a report as every way of showing it writes them: numbers, limits, and how much of a limit a number takes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Literal

from worker.parity.metrics import METRICS
from worker.parity.records import Report, Result, Verdict
from worker.parity.thresholds import PROFILES, Side

Level = Literal["ok", "warn", "fail"]

#: Short headings of the metrics; the delta is rollout - trainer, in nats.
LABELS = {
    "tokens": "tokens",
    "nonfinite": "non-finite",
    "mean_delta": "mean Δ",
    "mean_abs_delta": "mean |Δ|",
    "max_abs_delta": "max |Δ|",
    "mean_exp_abs_delta": "mean e^|Δ|",
    "mean_abs_dprob": "mean |Δp|",
    "max_abs_dprob": "max |Δp|",
    "kl_k1": "KL k1",
    "kl_k2": "KL k2",
    "kl_k3": "KL k3",
    "ratio_mean": "ratio mean",
    "ratio_p01": "ratio p1",
    "ratio_p99": "ratio p99",
    "ratio_min": "ratio min",
    "ratio_max": "ratio max",
    "ratio_chi2": "ratio χ²",
    "clip_rate": "clip rate",
    "ess": "ESS",
    "sequence_ratio_max": "max |Σr|",
}
#: Bounds of the steps of the colour scale, in shares of a limit.
HEAT = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0)
_SIDES = {(item.name, item.metric): item.side for profile in PROFILES.values() for item in profile}


def number(value: float) -> str:
    """Writes a number with three significant digits; counts of up to six digits are written in full."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def short(value: float) -> str:
    """Writes a limit: as `number`, without zeros at its end."""
    mantissa, power, exponent = number(value).partition("e")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + power + exponent


def plain(value: Any) -> str:
    """Writes a setting's value on one line: None is ``open``, texts are bare, the rest is JSON."""
    if value is None:
        return "open"
    return visible(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def visible(text: str) -> str:
    """Returns the text with everything that does not print escaped: line ends, terminal codes, marks of direction."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def label(metric: str) -> str:
    """Returns a metric's short heading."""
    return LABELS.get(metric, metric)


def ideal(metric: str) -> float:
    """Returns the metric's value where both sides agree: 0 or 1."""
    return METRICS[metric].ideal if metric in METRICS else 0.0


def side_of(verdict: Verdict) -> Side:
    """Returns what a verdict's limit bounds; a threshold that the user typed is named after what was typed."""
    if (known := _SIDES.get((verdict.threshold, verdict.metric))) is not None:
        return known
    if "<=" in verdict.threshold or ">=" in verdict.threshold:
        return "high" if "<=" in verdict.threshold else "low"
    if verdict.metric in METRICS and METRICS[verdict.metric].better == "zero":
        return "size"
    return "low" if verdict.limit < ideal(verdict.metric) else "high"


def bound(verdict: Verdict) -> str:
    """Writes a verdict's limit."""
    sign = {"high": "≤ ", "low": "≥ ", "size": "within ±"}[side_of(verdict)]
    return f"{sign}{short(verdict.limit)}"


def strain(verdict: Verdict, value: float) -> float:
    """Says how much of a verdict's limit a value takes.

    Returns:
        0 where both sides agree or the value is on the other side of that, 1 at the limit, and infinity for NaN. What lies
        beyond a limit where nothing is allowed takes infinitely much of it.
    """
    best, side = ideal(verdict.metric), side_of(verdict)
    if math.isnan(value):
        return math.inf
    direction = -1.0 if side == "low" else 1.0
    distance, allowed = direction * (value - best), direction * (verdict.limit - best)
    distance = abs(distance) if side == "size" else distance
    if allowed <= 0:
        return math.inf if distance > allowed else 0.0
    return max(distance / allowed, 0.0)


def taken(verdict: Verdict) -> float:
    """Says how much of its limit a verdict's own value takes."""
    return strain(verdict, verdict.value)


def heat(value: float) -> int:
    """Returns the step of the colour scale, 0 to 6, for a strain; from 4 on the limit is crossed."""
    return sum(value > step for step in HEAT)


def verdicts_of(result: Result, metric: str) -> list[Verdict]:
    """Returns the verdicts on one metric, the most strained first."""
    return sorted((verdict for verdict in result.verdicts if verdict.metric == metric), key=taken, reverse=True)


def crossed(result: Result) -> list[Verdict]:
    """Returns the worst verdict of each metric that is not ``ok``: failures first, then by strain."""
    found = [verdict for verdict in result.verdicts if verdict.level != "ok"]
    worst: dict[str, Verdict] = {}
    for verdict in sorted(found, key=lambda item: (item.level != "fail", -taken(item))):
        worst.setdefault(verdict.metric, verdict)
    return list(worst.values())


def level_of(result: Result, metric: str) -> Level | None:
    """Returns the worst level of a metric's verdicts; None if no threshold asks for it."""
    levels = {verdict.level for verdict in result.verdicts if verdict.metric == metric}
    return next((level for level in ("fail", "warn", "ok") if level in levels), None)


def metrics_of(results: Iterable[Result]) -> list[str]:
    """Returns the metrics that were measured anywhere, in the usual order; unknown ones come last."""
    found = dict.fromkeys(name for result in results for name in result.metrics)
    return [name for name in LABELS if name in found] + [name for name in found if name not in LABELS]


def limits_of(results: Iterable[Result], metric: str | None = None) -> list[Verdict]:
    """Returns one verdict for each threshold, in the order of the metrics and from low to high: it knows limit and source."""
    found = {(item.threshold, item.metric): item for result in results for item in result.verdicts}
    order = {name: place for place, name in enumerate(LABELS)}

    def key(verdict: Verdict) -> tuple[int, str, float, str]:
        return order.get(verdict.metric, len(order)), verdict.metric, verdict.limit, verdict.threshold

    return sorted((item for item in found.values() if metric in (None, item.metric)), key=key)


def measured(report: Report) -> list[Result]:
    """Returns the scenarios that have figures."""
    return [result for result in report.results if result.status == "measured"]
