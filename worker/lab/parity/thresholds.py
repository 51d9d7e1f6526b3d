"""The limits of the metrics: each has a name and a source, and all can be overridden."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from quirks_core.base.errors import UsageError, nearest, shown
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.records import LEVELS, Level, Side, Verdict

#: The profile that applies if none is named.
DEFAULT_PROFILE: Final = "peers"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One limit of one metric."""

    name: str  #: what reports call it
    metric: str  #: a name of `worker.lab.parity.metrics.METRICS`
    limit: float  #: the last allowed value
    side: Side  #: what the limit bounds
    level: Level  #: what crossing it means: ``warn`` or ``fail``
    source: str  #: where the limit comes from, with a URL if it is another project's

    def allows(self, value: float) -> bool:
        """Returns whether a value is within the limit; NaN never is."""
        if self.side == "low":
            return value >= self.limit
        return (abs(value) if self.side == "size" else value) <= self.limit

    def replaces(self, other: Threshold) -> bool:
        """Returns whether this one, typed by a user, replaces another one: a limit of the absolute value bounds both sides."""
        return self.metric == other.metric and (self.side == other.side or "size" in (self.side, other.side))


_OURS = "ours"
_NEMO_RL = (
    "NeMo RL, Add New Models, expected error threshold: https://github.com/NVIDIA-NeMo/RL/blob/main/docs/adding-new-models.md"
)
_VERL_FAQ = "verl FAQ, rollout_probs_diff_mean: https://github.com/verl-project/verl/blob/main/docs/faq/faq.rst"
_VERL_CORRECTION = (
    "verl, Rollout Correction, health check: https://github.com/verl-project/verl/blob/main/docs/algo/rollout_corr.md"
)
_TRL = (
    "ours, between the 0.017 of weights in sync and the 0.81 of stale ones in huggingface/trl#5312: "
    "https://github.com/huggingface/trl/issues/5312"
)
_PRIME_RL = (
    "ours, between the 1e-3 before and the 2 to 5 after a broken weight update in PrimeIntellect-ai/prime-rl#2714: "
    "https://github.com/PrimeIntellect-ai/prime-rl/pull/2714"
)
_NOISE = "ours, measured on vLLM 0.32.0, CPU, tiny random models of 2 layers"

_PEERS = (
    Threshold("something-measured", "tokens", 1, "low", "fail", f"{_OURS}: nothing compared is nothing shown"),
    Threshold("all-finite", "nonfinite", 0, "high", "fail", f"{_OURS}: a logprob is a number"),
    Threshold("nemo-rl-error", "mean_exp_abs_delta", 1.05, "high", "fail", _NEMO_RL),
    Threshold("verl-probability-normal", "mean_abs_dprob", 0.005, "high", "warn", _VERL_FAQ),
    Threshold("verl-probability-fault", "mean_abs_dprob", 0.01, "high", "fail", _VERL_FAQ),
    Threshold("verl-kl", "kl_k1", 0.1, "size", "fail", _VERL_CORRECTION),
    Threshold("verl-ratio-mean-low", "ratio_mean", 0.5, "low", "fail", _VERL_CORRECTION),
    Threshold("verl-ratio-mean-high", "ratio_mean", 2.0, "high", "fail", _VERL_CORRECTION),
    Threshold("verl-effective-samples", "ess", 0.3, "low", "fail", _VERL_CORRECTION),
    Threshold("verl-chi-squared", "ratio_chi2", 1.0, "high", "fail", _VERL_CORRECTION),
    Threshold("in-sync", "mean_abs_delta", 0.05, "high", "warn", _TRL),
    Threshold("stale-weights", "mean_abs_delta", 0.2, "high", "fail", _TRL),
    Threshold("healthy-kl", "kl_k3", 0.01, "high", "warn", _PRIME_RL),
    Threshold("broken-kl", "kl_k3", 0.1, "high", "fail", _PRIME_RL),
)
_FLOAT32 = (Threshold("float32-noise", "max_abs_delta", 1e-3, "high", "fail", f"{_NOISE}: about 1e-5"),)
_BFLOAT16 = (Threshold("bfloat16-noise", "mean_abs_delta", 0.05, "high", "fail", f"{_NOISE}: 0.027 for qwen3 and gemma3"),)

#: Sets of thresholds by name. ``peers`` has the limits of other RL frameworks; ``float32`` and ``bfloat16`` add the noise of
#: correct engines in that dtype. A tiny mixture of experts in bfloat16 fails all of them, also against itself: where two
#: experts are nearly equal, rounding decides. Compare it in float32.
PROFILES: Mapping[str, tuple[Threshold, ...]] = MappingProxyType(
    {DEFAULT_PROFILE: _PEERS, "float32": (*_PEERS, *_FLOAT32), "bfloat16": (*_PEERS, *_BFLOAT16)}
)

#: What a user typed is never called rounding.
_TYPED = "set by the user"
#: A difference of two sides that round is as large as the root of the sum of their squares; this much more is chance.
_CHANCE = 1.5

_ASSIGNMENT = re.compile(r"\s*(?P<metric>[^\s<>=]+)\s*(?P<operator><=|>=|=)\s*(?P<limit>.*?)\s*", re.DOTALL)
#: The side that ``metric=limit`` means, by where the metric is best.
_PLAIN_SIDES: Mapping[str, Side] = {"low": "high", "high": "low", "zero": "size"}


def parse_threshold(text: str) -> Threshold:
    """Reads a threshold that a user typed; crossing it fails.

    Args:
        text: ``metric<=limit``, ``metric>=limit``, or ``metric=limit`` where the metric decides the side: at most for
            most, at least for ``ess``, and of the absolute value for signed ones.

    Raises:
        UsageError: It has another form, the metric is unknown, or the limit is not a finite number; all of it in one error.
    """
    parts = _ASSIGNMENT.fullmatch(text)
    if parts is None:
        raise UsageError(
            f"threshold {shown(text)}: expected metric<=limit, metric>=limit or metric=limit{nearest(text, METRICS)}"
        )
    metric = parts["metric"]
    limit, problems = math.nan, []
    with suppress(ValueError):
        limit = float(parts["limit"])
    side: Side | None = {"<=": "high", ">=": "low"}.get(parts["operator"])  # type: ignore[assignment]
    if metric not in METRICS:
        problems.append(f"there is no metric {shown(metric)}{nearest(metric, METRICS)}")
    elif side is None and (side := _PLAIN_SIDES.get(METRICS[metric].better)) is None:
        problems.append(f"{metric} can be too low and too high: write {metric}<=limit or {metric}>=limit")
    if not math.isfinite(limit):
        problems.append(f"the limit must be a finite number, not {shown(parts['limit'])}")
    if problems or side is None:
        raise UsageError(f"threshold {shown(text)}: {'; '.join(problems)}")
    return Threshold(" ".join(text.split()), metric, limit, side, "fail", _TYPED)


def chosen_thresholds(profile: str = DEFAULT_PROFILE, overrides: Iterable[str] = ()) -> tuple[Threshold, ...]:
    """Returns a profile with what a user typed in place of its limits of the same metric and side.

    Args:
        profile: A name of `PROFILES`.
        overrides: Texts as for `parse_threshold`; of several for one metric and side, the last counts.

    Raises:
        UsageError: The profile is unknown or a text is wrong; all of them are in the one error.
    """
    problems = []
    if profile not in PROFILES:
        known = ", ".join(PROFILES)
        problems.append(f"there is no profile {shown(profile)}; known are {known}{nearest(profile, PROFILES)}")
    kept = list(PROFILES.get(profile, ()))
    for text in overrides:
        try:
            given = parse_threshold(text)
        except UsageError as error:
            problems.append(str(error))
        else:
            kept = [*(other for other in kept if not given.replaces(other)), given]
    if problems:
        raise UsageError("\n".join(problems))
    return tuple(kept)


def judge(metrics: Mapping[str, float], thresholds: Sequence[Threshold]) -> tuple[Verdict, ...]:
    """Compares metrics with thresholds; those of a metric without a value are left out.

    Returns:
        One verdict per threshold: failures first, then warnings, then what is within its limit.
    """
    verdicts = [
        Verdict(
            metric=limit.metric,
            value=metrics[limit.metric],
            threshold=limit.name,
            limit=limit.limit,
            side=limit.side,
            level="ok" if limit.allows(metrics[limit.metric]) else limit.level,
            source=limit.source,
        )
        for limit in thresholds
        if limit.metric in metrics
    ]
    return tuple(sorted(verdicts, key=lambda verdict: -LEVELS.index(verdict.level)))


def told_from_rounding(
    verdicts: Sequence[Verdict], metrics: Mapping[str, float], rounding: Mapping[str, float]
) -> tuple[Verdict, ...]:
    """Returns verdicts in which ``rounding`` stands for ``fail`` where rounding explains the whole difference.

    It does if the difference is no larger than that of the dtypes alone, in the mean and in the tails (KL), and has no
    direction: another definition of a logprob has one. `rounding` has the metrics of rounding alone, if they were measured.
    """
    size = _CHANCE * rounding.get("mean_abs_delta", 0.0)
    explained = (
        rounding
        and not metrics["nonfinite"]
        and metrics["mean_abs_delta"] <= size
        and metrics["kl_k3"] <= _CHANCE**2 * rounding["kl_k3"]
        and abs(metrics["mean_delta"]) <= size / 2
    )
    if not explained:
        return tuple(verdicts)
    kept = {item.threshold for item in verdicts if item.level != "fail" or item.source == _TYPED}
    return tuple(item if item.threshold in kept else item.model_copy(update={"level": "rounding"}) for item in verdicts)


def strain(verdict: Verdict) -> float:
    """Returns by how much a verdict's limit is crossed: 1 at the limit; infinity for NaN, and beyond a limit of zero."""
    best = METRICS[verdict.metric].ideal
    allowed = abs(verdict.limit - best)
    return math.inf if math.isnan(verdict.value) or not allowed else abs(verdict.value - best) / allowed
