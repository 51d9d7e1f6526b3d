"""Metrics of the difference between the logprobs of two sides, and breakdowns that show where they differ.

Throughout, ``delta`` is rollout - trainer per generated token in nats, ``r`` the log ratio trainer - rollout, and the
ratio ``exp(r)`` what a policy gradient sees as pi_train / pi_rollout before its first step. Nothing is truncated, masked
or reweighted: an importance-sampling correction would hide the differences that this measures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from worker.lab.parity.records import Bin, Sample, WorstToken

#: Turns token ids into text; None if it cannot.
Decode: TypeAlias = Callable[[list[int]], str | None]

_Booleans: TypeAlias = NDArray[np.bool_]
_Floats: TypeAlias = NDArray[np.float64]
_Integers: TypeAlias = NDArray[np.int64]

#: Largest exponent that `exp` is given, in nats: a mean of 1e260 still fits a float, and no correct ratio comes near.
_LARGEST_EXPONENT = 600.0
#: Largest log ratio, in nats: beyond the range of float32, and its square still fits.
_LARGEST_LOG_RATIO = 1e100
#: Half the width of a trainer's clip range.
_CLIPPED = 0.2
_PROBABILITIES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9, 1.0)
_WORST_TOKENS = 10
#: Tokens shown before each of the worst.
_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class Metric:
    """The definition of one metric."""

    name: str  #: its name in `Measured.metrics`
    label: str  #: its heading; Δ is rollout - trainer
    help: str  #: what it is, in one line
    unit: str  #: ``nats``, ``probability``, ``share``, ``tokens``, or empty for a ratio
    #: ``low``, ``high``, near ``zero`` or near ``one``; ``any`` if no value is better
    better: Literal["low", "high", "zero", "one", "any"]
    ideal: float = 0.0  #: its value if both sides are equal


_METRICS = (
    Metric("tokens", "tokens", "generated tokens that were compared", "tokens", "any"),
    Metric("nonfinite", "non-finite", "tokens whose logprob is NaN or infinite on a side; in no other metric", "tokens", "low"),
    Metric("mean_delta", "mean Δ", "mean of rollout - trainer", "nats", "zero"),
    Metric("mean_abs_delta", "mean |Δ|", "mean of |rollout - trainer|", "nats", "low"),
    Metric("max_abs_delta", "max |Δ|", "largest |rollout - trainer|", "nats", "low"),
    Metric("mean_exp_abs_delta", "mean e^|Δ|", "mean of e^|Δ|: NeMo RL's token_mult_prob_error", "", "low", 1.0),
    Metric("mean_abs_dprob", "mean |Δp|", "mean difference of the tokens' probabilities", "probability", "low"),
    Metric("max_abs_dprob", "max |Δp|", "largest difference of a token's probabilities", "probability", "low"),
    Metric("kl_k1", "KL k1", "KL(rollout || trainer), k1: mean of -r; unbiased, can be negative", "nats", "zero"),
    Metric("kl_k2", "KL k2", "KL(rollout || trainer), k2: mean of r^2 / 2", "nats", "low"),
    Metric("kl_k3", "KL k3", "KL(rollout || trainer), k3: mean of exp(r) - 1 - r; unbiased, not negative", "nats", "low"),
    Metric("ratio_mean", "ratio mean", "mean policy ratio", "", "one", 1.0),
    Metric("ratio_p01", "ratio p1", "policy ratio that 1 % of the tokens are below", "", "one", 1.0),
    Metric("ratio_p99", "ratio p99", "policy ratio that 1 % of the tokens are above", "", "one", 1.0),
    Metric("ratio_min", "ratio min", "smallest policy ratio", "", "one", 1.0),
    Metric("ratio_max", "ratio max", "largest policy ratio", "", "one", 1.0),
    Metric("ratio_chi2", "ratio χ²", "mean of the squared ratio, less 1: chi-squared divergence", "", "zero"),
    Metric("clip_rate", "clip rate", "tokens whose ratio is outside 0.8 to 1.2", "share", "low"),
    Metric("ess", "ESS", "effective sample size of the ratios, of 1", "share", "high", 1.0),
    Metric("sequence_ratio_max", "max |Σr|", "largest |sum of r| over the tokens of one sequence", "nats", "low"),
)
#: All metrics by name, in the order in which reports show them. The estimators k1, k2 and k3 are those of
#: http://joschu.net/blog/kl-approx.html, from samples of the rollout.
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _METRICS})


class Measured(NamedTuple):
    """Everything that was measured on some samples, under the names that `worker.lab.parity.records.Result` has for it."""

    metrics: dict[str, float]  #: values by the names of `METRICS`; all are finite
    by_position: tuple[Bin, ...]  #: by position among the generated tokens, in bins that double; empty ones are left out
    by_probability: tuple[Bin, ...]  #: by the trainer's probability of the token; empty ones are left out
    #: the 10 tokens with the largest differences, the largest first; before them those that are not finite
    worst: tuple[WorstToken, ...]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of all samples in a row."""

    sample: _Integers  #: [N] number of the sample
    position: _Integers  #: [N] position among its generated tokens
    rollout: _Floats  #: [N] logprobs of the engine
    trainer: _Floats  #: [N] logprobs of the trainer

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Tokens:
        lengths = [len(row.tokens) for row in samples]
        return cls(
            np.repeat(np.arange(len(samples)), lengths),
            np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)]),
            np.array([value for row in samples for value in row.rollout], np.float64),
            np.array([value for row in samples for value in row.trainer], np.float64),
        )

    @property
    def finite(self) -> _Booleans:
        """[N] whether both logprobs are numbers."""
        both: _Booleans = np.isfinite(self.rollout) & np.isfinite(self.trainer)
        return both

    @property
    def log_ratio(self) -> _Floats:
        """[N] trainer - rollout; meaningless where not `finite`."""
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, and finite values further apart than a float reaches
            return np.clip(self.trainer - self.rollout, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)

    def where(self, chosen: _Booleans) -> _Tokens:
        return _Tokens(self.sample[chosen], self.position[chosen], self.rollout[chosen], self.trainer[chosen])


def measured(samples: Sequence[Sample], *, decode: Decode | None = None) -> Measured:
    """Compares both sides over all generated tokens.

    Args:
        samples: Samples with the logprobs of both sides.
        decode: Turns token ids into text, for the worst tokens.
    """
    tokens = _Tokens.of(samples)
    finite = tokens.where(tokens.finite)
    nonfinite = len(tokens.position) - len(finite.position)
    return Measured(
        {"tokens": float(len(finite.position)), "nonfinite": float(nonfinite), **_metrics(finite)},
        _by_position(finite),
        _by_probability(finite),
        _worst(samples, tokens, decode),
    )


def _exp(values: _Floats) -> _Floats:
    result: _Floats = np.exp(np.minimum(values, _LARGEST_EXPONENT))
    return result


def _metrics(tokens: _Tokens) -> dict[str, float]:
    r = tokens.log_ratio
    if not len(r):  # as if both sides were equal; `tokens` shows that nothing was compared
        return {metric.name: metric.ideal for metric in _METRICS if metric.unit != "tokens"}
    ratio = _exp(r)
    distance = np.abs(r)
    dprob = np.abs(_exp(tokens.rollout) - _exp(tokens.trainer))
    weights = np.exp(r - r.max())  # the effective sample size does not change with scale, and this cannot overflow
    found = {
        "mean_delta": -r.mean(),
        "mean_abs_delta": distance.mean(),
        "max_abs_delta": distance.max(),
        "mean_exp_abs_delta": _exp(distance).mean(),
        "mean_abs_dprob": dprob.mean(),
        "max_abs_dprob": dprob.max(),
        "kl_k1": -r.mean(),
        "kl_k2": (r * r).mean() / 2,
        "kl_k3": (np.expm1(np.minimum(r, _LARGEST_EXPONENT)) - r).mean(),
        "ratio_mean": ratio.mean(),
        "ratio_p01": np.quantile(ratio, 0.01),
        "ratio_p99": np.quantile(ratio, 0.99),
        "ratio_min": ratio.min(),
        "ratio_max": ratio.max(),
        "ratio_chi2": np.expm1(np.minimum(2 * r, _LARGEST_EXPONENT)).mean(),
        "clip_rate": (np.abs(ratio - 1) > _CLIPPED).mean(),
        "ess": weights.sum() ** 2 / (len(r) * (weights * weights).sum()),
        "sequence_ratio_max": np.abs(np.bincount(tokens.sample, weights=r)).max(),
    }
    return {name: float(value) + 0.0 for name, value in found.items()}  # + 0.0 turns -0.0 into 0.0


def _by_position(tokens: _Tokens) -> tuple[Bin, ...]:
    bins = []
    start, end = 0, 1
    while start <= tokens.position.max(initial=-1):
        label = str(start) if end - start == 1 else f"{start}-{end - 1}"
        bins.append(_bin(label, tokens.where((tokens.position >= start) & (tokens.position < end))))
        start, end = end, end * 2
    return tuple(part for part in bins if part.tokens)


def _by_probability(tokens: _Tokens) -> tuple[Bin, ...]:
    numbers = np.searchsorted(_PROBABILITIES, _exp(tokens.trainer), side="right") - 1
    numbers = np.minimum(numbers, len(_PROBABILITIES) - 2)  # the last bin includes 1 and values above it by rounding
    labels = [f"{low:.15g}-{high:.15g}" for low, high in itertools.pairwise(_PROBABILITIES)]
    bins = [_bin(label, tokens.where(numbers == number)) for number, label in enumerate(labels)]
    return tuple(part for part in bins if part.tokens)


def _bin(label: str, tokens: _Tokens) -> Bin:
    delta = -tokens.log_ratio if len(tokens.position) else np.zeros(1)
    size = np.abs(delta)
    return Bin(
        label=label,
        tokens=len(tokens.position),
        mean_delta=float(delta.mean()) + 0.0,
        mean_abs_delta=float(size.mean()),
        max_abs_delta=float(size.max()),
    )


def _worst(samples: Sequence[Sample], tokens: _Tokens, decode: Decode | None) -> tuple[WorstToken, ...]:
    def text(ids: list[int]) -> str:
        return (decode(ids) if decode and ids else None) or ""

    size = np.where(tokens.finite, np.abs(tokens.log_ratio), np.inf)
    found = []
    for index in map(int, np.argsort(-size, kind="stable")[:_WORST_TOKENS]):
        number, position = int(tokens.sample[index]), int(tokens.position[index])
        row = samples[number]
        before = [*row.prompt, *row.tokens[:position]][-_CONTEXT:]
        found.append(
            WorstToken(
                sample=number,
                position=position,
                token=row.tokens[position],
                text=text([row.tokens[position]]),
                before=text(before) or " ".join(map(str, before)),
                rollout=row.rollout[position],
                trainer=row.trainer[position],
                note=row.note,
            )
        )
    return tuple(found)
