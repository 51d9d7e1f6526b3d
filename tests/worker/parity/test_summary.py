"""What a report comes to: the headline."""

from __future__ import annotations

import pytest

from worker.lab.parity.records import Result, Step, Verdict
from worker.lab.parity.summary import crossed, headline


def test_the_headline_names_the_strongest_cure_of_what_is_broken(faulty):
    said = headline(faulty)

    assert said.level == "fail"
    assert said.verdict.startswith("Parity is broken in 4 of 9 scenarios: temperature, top-p-top-k, in-flight-kept, sleep-wake")
    assert said.advice == (
        "Set engine.logprobs_mode to processed_logprobs (now raw_logprobs): that restores temperature. "
        "Quirk rollout-logprobs-processed sets it (disabled): switched off by --disable."
    )


@pytest.mark.parametrize(
    ("load_format", "tried", "itself"),
    [("auto", "engine.dtype", True), ("dummy", "engine.load_format", True), ("dummy", "engine.dtype", False)],
)
def test_a_model_wrong_from_disk_is_not_blamed_on_a_refit(make_report, make_result, load_format, tried, itself):
    step = Step(setting=tried, before=None, after="auto", how="restart")
    report = make_report(
        results=(make_result("cold-start", 1.0),), attributions=(), steps=(step,), settings={"engine.load_format": load_format}
    )

    assert ("Not the refit: the engine's model itself" in headline(report).advice) is itself


def test_the_headline_fails_exactly_where_the_report_does(make_report, make_result, faulty, sound):
    """Also where nothing was measured, and where only rounding crosses a limit."""
    skipped = make_report(results=(Result(scenario="x", title="", status="skipped", reason="no"),))
    over = Verdict(metric="mean_exp_abs_delta", value=1.0527, threshold="t", limit=1.05, level="rounding", source="s")
    sizes = {"verdicts": (over,), "rounding": {"mean_abs_delta": 0.048, "kl_k3": 0.002}}
    rounded = make_report(results=(make_result("temperature", **sizes),), attributions=(), steps=())
    reports = (faulty, sound, skipped, rounded)

    assert [report.passed for report in reports] == [False, True, False, True]
    assert [headline(report).level for report in reports] == ["fail", "ok", "fail", "rounding"]
    assert headline(rounded).advice.startswith("quirks parity explain")


def test_the_worst_verdict_of_each_metric_speaks_for_it(faulty):
    over = crossed(faulty.results[1].verdicts)

    assert [verdict.threshold for verdict in over if verdict.metric == "mean_abs_delta"] == ["stale-weights"]
    assert [verdict.level for verdict in over] == sorted((verdict.level for verdict in over), key=["fail", "warn"].index)
