"""Thresholds: what crosses them, what a user may type, and that each says where it comes from."""

from __future__ import annotations

import math

import pytest

from quirks_core.base.errors import UsageError
from worker.lab.parity.metrics import METRICS, measured
from worker.lab.parity.records import Sample
from worker.lab.parity.thresholds import (
    DEFAULT_PROFILE,
    PROFILES,
    Threshold,
    chosen_thresholds,
    judge,
    parse_threshold,
    strain,
    told_from_rounding,
)


def threshold(**values) -> Threshold:
    return Threshold(
        **{"name": "t", "metric": "max_abs_delta", "limit": 1.0, "side": "high", "level": "fail", "source": "s", **values}
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_every_threshold_is_declared_completely(profile: str) -> None:
    thresholds = PROFILES[profile]

    assert len({row.name for row in thresholds}) == len(thresholds)
    assert {row.metric for row in thresholds} <= set(METRICS)
    assert all(row.source.startswith("ours") or "https://" in row.source for row in thresholds)
    assert all(math.isfinite(row.limit) for row in thresholds)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("rollout", "crossed"),
    [((-1.0, -2.0), []), ((), ["something-measured"]), ((-1.0, math.nan), ["all-finite"])],
    ids=["equal", "nothing", "no number"],
)
def test_equal_sides_fail_only_without_a_number_to_compare(profile, rollout, crossed) -> None:
    row = Sample(prompt=(1,), tokens=(2,) * len(rollout), rollout=rollout, trainer=(-1.0, -2.0)[: len(rollout)])

    found = judge(measured([row]).metrics, chosen_thresholds(profile))

    assert [verdict.threshold for verdict in found if verdict.level != "ok"] == crossed


@pytest.mark.parametrize(
    ("side", "limit", "fine", "crossed"),
    [
        ("high", 1.05, [1.05, -9.0], [1.0500001, math.nan]),
        ("low", 0.3, [0.3, 9.0], [0.2999999, math.nan]),
        ("size", 0.1, [0.1, -0.1, 0.0], [0.11, -0.11, math.nan]),
    ],
)
def test_a_limit_is_the_last_value_that_is_fine(side, limit: float, fine: list[float], crossed: list[float]) -> None:
    row = threshold(side=side, limit=limit)

    assert all(map(row.allows, fine))
    assert not any(map(row.allows, crossed))


def test_verdicts_on_what_was_measured_come_failures_first() -> None:
    rows = [
        threshold(name="fine", limit=9.0),
        threshold(name="warned", level="warn"),
        threshold(name="failed"),
        threshold(name="absent", metric="ess"),
    ]

    found = judge({"max_abs_delta": 2.0}, rows)

    assert [(row.threshold, row.level) for row in found] == [("failed", "fail"), ("warned", "warn"), ("fine", "ok")]
    assert (found[0].metric, found[0].value, found[0].limit, found[0].source) == ("max_abs_delta", 2.0, 1.0, "s")


@pytest.mark.parametrize(
    ("text", "metric", "limit", "side"),
    [
        ("mean_abs_delta=0.01", "mean_abs_delta", 0.01, "high"),
        ("ess=0.9", "ess", 0.9, "low"),
        ("kl_k1=0.05", "kl_k1", 0.05, "size"),
        ("ratio_min >= 0.8", "ratio_min", 0.8, "low"),
        ("kl_k1>=-1e-2", "kl_k1", -0.01, "low"),
    ],
)
def test_a_threshold_that_a_user_types_is_read_completely(text: str, metric: str, limit: float, side: str) -> None:
    row = parse_threshold(text)

    assert (row.metric, row.limit, row.side, row.level) == (metric, limit, side, "fail")
    assert row.name == text.strip()
    assert row.source == "set by the user"


def test_all_that_is_wrong_is_in_one_error() -> None:
    with pytest.raises(UsageError) as caught:
        chosen_thresholds("flaot32", ["kl_k3=0.1", "ess=high", "clip_rat=x"])

    message = str(caught.value)
    assert "no profile 'flaot32'; known are peers, float32, bfloat16; did you mean 'float32'?" in message
    assert "'high'" in message
    assert "'clip_rat'; did you mean 'clip_rate'?" in message
    assert "'x'" in message


def test_what_a_user_types_replaces_limits_of_that_side() -> None:
    found = chosen_thresholds(
        DEFAULT_PROFILE, ["mean_abs_dprob=0.02", "ratio_mean<=1.5", "kl_k1<=0.3", "kl_k1<=0.2", "max_abs_delta=1"]
    )

    limits = {(row.metric, row.side, row.level): row.limit for row in found}
    assert [key for key in limits if key[0] == "mean_abs_dprob"] == [("mean_abs_dprob", "high", "fail")]
    assert limits["mean_abs_dprob", "high", "fail"] == 0.02
    assert limits["ratio_mean", "high", "fail"] == 1.5
    assert limits["ratio_mean", "low", "fail"] == 0.5
    assert [(key, value) for key, value in limits.items() if key[0] == "kl_k1"] == [(("kl_k1", "high", "fail"), 0.2)]
    assert limits["max_abs_delta", "high", "fail"] == 1
    assert limits["ess", "low", "fail"] == 0.3


@pytest.mark.parametrize("text", ["mean_abs_delta=0.02", "ess>=0.9", "mean_delta=0.1", "ratio_mean>=0.9", "clip_rate=0"])
def test_a_limit_that_is_crossed_is_taken_by_more_than_all_of_it(text) -> None:
    threshold = parse_threshold(text)

    for value in (-1e3, -0.2, -0.05, 0.0, 0.01, 0.05, 0.5, 0.95, 1.0, 1.2, 50.0, 1e3, math.nan):
        (verdict,) = judge({threshold.metric: value}, [threshold])
        assert strain(verdict) > 1 or verdict.level == "ok", value


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, "rounding"),
        ({"mean_abs_delta": 0.08}, "fail"),
        ({"kl_k3": 0.01}, "fail"),
        ({"mean_delta": 0.045}, "fail"),
        ({"nonfinite": 1.0}, "fail"),
    ],
    ids=["as large", "larger", "with tails", "with a direction", "with no number"],
)
def test_only_a_difference_as_large_as_the_dtypes_is_rounding(changed, level) -> None:
    found = {"mean_abs_delta": 0.05, "kl_k3": 0.002, "mean_delta": 0.001, "nonfinite": 0.0, "mean_exp_abs_delta": 1.0527}
    found |= changed
    verdicts = judge(found, [threshold(metric="mean_exp_abs_delta", limit=1.05), parse_threshold("mean_abs_delta=0.01")])

    told = told_from_rounding(verdicts, found, {"mean_abs_delta": 0.048, "kl_k3": 0.0018})

    assert {item.metric: item.level for item in told} == {"mean_exp_abs_delta": level, "mean_abs_delta": "fail"}, "typed: fails"
    assert told_from_rounding(verdicts, found, {}) == verdicts
