"""Numbers and limits as reports write them."""

from __future__ import annotations

import math

import pytest

from worker.parity.figures import LABELS, bound, crossed, heat, number, plain, short, strain, taken, visible
from worker.parity.metrics import METRICS
from worker.parity.records import Verdict
from worker.parity.thresholds import judge, parse_threshold


def _verdict(metric: str, limit: float, *, value: float = 0.0, threshold: str = "ours") -> Verdict:
    return Verdict(metric=metric, value=value, threshold=threshold, limit=limit, level="ok", source="s")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1"), (480.0, "480"), (-3.0, "-3"), (0.35, "0.350"), (1.0000083, "1.00"), (123.456, "123"),
        (1234.5, "1234"), (0.00123456, "0.00123"), (0.000123456, "1.23e-4"), (-2.5e-11, "-2.50e-11"), (2e9, "2.00e9"),
        (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_a_limit_is_written_without_zeros_at_its_end():
    assert [short(value) for value in (0.02, 1.05, 1e-5, 1.0, 100.0, 0.3)] == ["0.02", "1.05", "1e-5", "1", "100", "0.3"]


def test_a_setting_that_is_left_open_is_said_to_be_open():
    assert [plain(value) for value in (None, False, "bfloat16", [1, 2], 0.5)] == ["open", "false", "bfloat16", "[1, 2]", "0.5"]


def test_what_does_not_print_is_escaped():
    assert visible("a\n\t\x1b[31m\u202eé 中") == "a\\n\\t\\x1b[31m\\u202eé 中"


def test_every_metric_has_a_heading():
    assert set(LABELS) == set(METRICS)


@pytest.mark.parametrize(
    ("metric", "limit", "value", "share"),
    [
        ("mean_abs_delta", 0.02, 0.01, 0.5),
        ("mean_exp_abs_delta", 1.05, 1.1, 2.0),
        ("ess", 0.3, 0.65, 0.5),
        ("kl_k1", 0.1, -0.05, 0.5),
        ("ratio_mean", 2.0, 1.5, 0.5),
        ("ratio_mean", 2.0, 0.1, 0.0),
        ("ratio_mean", 0.5, 1.5, 0.0),
        ("ratio_mean", 0.5, 0.75, 0.5),
        ("nonfinite", 0.0, 0.0, 0.0),
        ("nonfinite", 0.0, 1.0, math.inf),
        ("mean_abs_delta", 0.02, math.nan, math.inf),
        ("mean_abs_delta", 0.02, math.inf, math.inf),
        ("acme", 4.0, 2.0, 0.5),
    ],
)
def test_the_share_of_a_limit_is_0_where_both_sides_agree_and_1_at_the_limit(metric, limit, value, share):
    assert strain(_verdict(metric, limit), value) == pytest.approx(share)


@pytest.mark.parametrize("name", ["something-measured", "tokens>=1"])
def test_a_limit_from_below_on_what_is_best_high_is_kept_or_crossed(name):
    limit = _verdict("tokens", 1, threshold=name)

    assert strain(limit, 480.0) == 0.0
    assert strain(limit, 0.0) == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "mean_abs_delta=0.02", "ess=0.5", "ess<=0.9", "mean_delta>=-0.1", "mean_delta=0.1", "kl_k1<=0.1", "ratio_mean>=0.9",
        "ratio_max<=1.5", "tokens>=100", "clip_rate=0", "ratio_chi2=0.5",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [-1e3, -0.2, -0.05, 0.0, 0.01, 0.05, 0.5, 0.95, 1.0, 1.2, 50.0, 1e3])
def test_more_than_all_of_a_limit_is_taken_exactly_where_it_is_crossed(text, value):
    threshold = parse_threshold(text)
    (verdict,) = judge({threshold.metric: value}, [threshold])

    assert (taken(verdict) > 1) == (verdict.level == "fail")
    assert (heat(taken(verdict)) > 3) == (verdict.level == "fail")


def test_the_limits_of_the_profiles_are_written_with_their_side():
    assert [
        bound(_verdict("ess", 0.3)),
        bound(_verdict("kl_k3", 0.01)),
        bound(_verdict("kl_k1", 0.1, threshold="verl-kl")),
        bound(_verdict("ratio_chi2", 1, threshold="verl-chi-squared")),
        bound(_verdict("mean_delta", 0.1, threshold="mean_delta<=0.1")),
        bound(_verdict("tokens", 1, threshold="something-measured")),
    ] == ["≥ 0.3", "≤ 0.01", "within ±0.1", "≤ 1", "≤ 0.1", "≥ 1"]


def test_the_worst_verdict_of_each_metric_speaks_for_it(faulty):
    over = crossed(faulty.results[1])

    assert [verdict.metric for verdict in over].count("mean_abs_delta") == 1
    assert next(verdict for verdict in over if verdict.metric == "mean_abs_delta").threshold == "stale-weights"
    assert [verdict.level for verdict in over] == sorted((verdict.level for verdict in over), key=["fail", "warn"].index)
