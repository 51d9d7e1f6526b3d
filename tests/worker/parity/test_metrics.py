"""The metrics of parity: against figures worked out by hand and by the definitions, and against hostile logprobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.lab.parity.metrics import METRICS, measured
from worker.lab.parity.records import Sample

NAN = math.nan


def sample(rollout: Sequence[float], trainer: Sequence[float], *, prompt: Sequence[int] = (5, 6), note: str = "") -> Sample:
    """A sample whose tokens are 10, 11, 12 and so on."""
    tokens = tuple(range(10, 10 + len(rollout)))
    return Sample(prompt=tuple(prompt), tokens=tokens, rollout=tuple(rollout), trainer=tuple(trainer), note=note)


def logs(*probabilities: float) -> list[float]:
    return [math.log(probability) for probability in probabilities]


def test_metrics_of_two_tokens_are_those_worked_out_by_hand() -> None:
    halved = sample(logs(0.5, 0.2), logs(0.25, 0.2))  # ratios 1/2 and 1

    found = measured([halved]).metrics

    log2 = math.log(2)
    assert list(found) == list(METRICS)
    assert found == pytest.approx(
        {
            "tokens": 2,
            "nonfinite": 0,
            "mean_delta": log2 / 2,
            "mean_abs_delta": log2 / 2,
            "max_abs_delta": log2,
            "mean_exp_abs_delta": (2 + 1) / 2,
            "mean_abs_dprob": 0.125,
            "max_abs_dprob": 0.25,
            "kl_k1": log2 / 2,
            "kl_k2": log2**2 / 4,
            "kl_k3": (0.5 - 1 + log2) / 2,
            "ratio_mean": 0.75,
            "ratio_p01": 0.505,
            "ratio_p99": 0.995,
            "ratio_min": 0.5,
            "ratio_max": 1,
            "ratio_chi2": (0.25 + 1) / 2 - 1,
            "clip_rate": 0.5,
            "ess": 1.5**2 / (2 * 1.25),
            "sequence_ratio_max": log2,
        },
        rel=1e-12,
    )


@pytest.mark.parametrize("rows", [[], [sample([], [])], [sample([NAN], [NAN])]], ids=["no sample", "no token", "only NaN"])
def test_metrics_without_a_finite_token_are_those_of_equal_sides(rows: list[Sample]) -> None:
    nothing, equal = measured(rows), measured([sample([-1.0], [-1.0])])

    assert nothing.metrics["tokens"] == 0
    assert {**nothing.metrics, "tokens": 1, "nonfinite": 0} == equal.metrics
    assert nothing.by_position == nothing.by_probability == ()


LOGPROBS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.lists(st.tuples(LOGPROBS, LOGPROBS), max_size=6), max_size=4))
def test_the_figures_account_for_every_token_with_finite_values(rows: list[list[tuple[float, float]]]) -> None:
    samples = [sample([a for a, _ in row], [b for _, b in row]) for row in rows]

    found = measured(samples)

    assert all(map(math.isfinite, found.metrics.values()))
    total = sum(map(len, rows))
    finite = found.metrics["tokens"]
    assert finite + found.metrics["nonfinite"] == total
    for parts in (found.by_position, found.by_probability):
        assert sum(part.tokens for part in parts) == finite
        assert all(math.isfinite(part.mean_delta) and math.isfinite(part.max_abs_delta) for part in parts)
    assert len(found.worst) == min(10, total)


def test_positions_fall_into_bins_that_double() -> None:
    row = sample([-1.0] * 9, [-1.0 - position for position in range(9)])

    bins = measured([row, sample([-1.0], [-1.0])]).by_position

    assert [(part.label, part.tokens) for part in bins] == [("0", 2), ("1", 1), ("2-3", 2), ("4-7", 4), ("8-15", 1)]
    assert [part.mean_delta for part in bins] == [0, 1, 2.5, 5.5, 8]
    assert [part.max_abs_delta for part in bins] == [0, 1, 3, 7, 8]


def test_the_trainers_probabilities_fall_into_fixed_bins() -> None:
    trainer = logs(1e-5, 5e-4, 5e-3, 0.05, 0.3, 0.6, 0.95, 1.0)
    rows = [sample([-1.0] * len(trainer), trainer)]

    bins = measured(rows).by_probability

    labels = ["0-0.0001", "0.0001-0.001", "0.001-0.01", "0.01-0.1", "0.1-0.5", "0.5-0.9", "0.9-1"]
    assert [part.label for part in bins] == labels
    assert [part.tokens for part in bins] == [1, 1, 1, 1, 1, 1, 2]


def test_the_worst_tokens_are_the_ten_furthest_apart() -> None:
    """Those that are no numbers come first."""
    far = sample([-1.0, -1.0], [-1.0, -4.0], prompt=range(100, 130), note="rank 1")
    rows = [sample([-1.0] * 12, [-1.0 - 0.01 * position for position in range(12)]), far]
    broken = [sample([-1.0, -1.0, NAN], [-1.0, -math.inf, -1.0])]

    *nonfinite, first = measured([*broken, far]).worst[:3]
    worst = measured(rows, decode=lambda tokens: "".join(f"<{token}>" for token in tokens)).worst

    assert [(token.sample, token.position) for token in (*nonfinite, first)] == [(0, 1), (0, 2), (1, 1)]
    assert len(worst) == 10
    first = worst[0]
    assert (first.sample, first.position, first.token, first.note) == (1, 1, 11, "rank 1")
    assert (first.rollout, first.trainer) == (-1.0, -4.0)
    assert first.text == "<11>"
    assert first.before == "".join(f"<{token}>" for token in [*range(115, 130), 10])
    assert [token.position for token in worst[1:]] == [11, 10, 9, 8, 7, 6, 5, 4, 3]
