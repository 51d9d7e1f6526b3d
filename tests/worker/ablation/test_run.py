"""What is measured anew while settings are changed, and what moves parity. The figures come from a table of planted faults.

That real faults are put down to the right setting is for the tests with an engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quirks_core.base.errors import QuirksError
from worker.lab.attribution.run import attributions, run_variants
from worker.lab.attribution.variant import Start, Variant, variants
from worker.lab.parity.records import Result, Step
from worker.lab.parity.thresholds import judge, parse_threshold

LIMIT, NOISE = 0.01, 1e-6
THRESHOLDS = (parse_threshold(f"max_abs_delta={LIMIT}"), parse_threshold("mean_exp_abs_delta=1.05"))
PROCESSED = "rollout-logprobs-processed"
SCENARIOS = ("cold-start", "temperature", "after-refit")
RAW_MODE = {"engine": {"logprobs_mode": "raw_logprobs"}}


@dataclass
class Fault:
    """Adds to the deltas of some scenarios unless settings have certain values."""

    size: float
    scenarios: tuple[str, ...]
    cure: dict[str, Any]


RAW = Fault(0.5, ("temperature",), {"engine.logprobs_mode": "processed_logprobs"})
STALE = Fault(0.2, ("after-refit",), {"engine.enable_prefix_caching": False})
HEADS = Fault(0.1, ("cold-start",), {"engine.head_dtype": "float32", "train.head_dtype": "float32"})


class Table:
    """Stands for engine and trainer: looks up which faults a run has left, and notes what it was asked."""

    def __init__(self, *faults: Fault, broken: str = "") -> None:
        self.faults = faults
        self.broken = broken
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    def results(self, plan: Any, scenarios: Sequence[str] = SCENARIOS) -> list[Result]:
        """What a run with that plan would see."""
        left = [fault for fault in self.faults if any(plan.value(slot) != value for slot, value in fault.cure.items())]
        return [result(name, NOISE + sum(fault.size for fault in left if name in fault.scenarios)) for name in scenarios]

    async def __call__(self, variant: Variant, scenarios: Sequence[str]) -> list[Result]:
        """Measures, as `worker.lab.attribution.run.Measure`."""
        if variant.change.setting == self.broken:
            raise QuirksError("out of memory")
        self.calls.append((variant.change.setting, tuple(scenarios)))
        return self.results(variant.plan, scenarios)


def result(scenario: str, delta: float, *, gates: bool = True) -> Result:
    metrics = {"tokens": 100.0, "max_abs_delta": delta, "mean_exp_abs_delta": 1 + delta / 10}
    return Result(scenario=scenario, title="-", gates=gates, metrics=metrics, verdicts=judge(metrics, THRESHOLDS))


async def tried(start: Start, table: Table, *only: str, **options: Any) -> tuple[list[Result], list[Step]]:
    """Tries the variants of a run; returns its own results and the steps."""
    baseline = table.results(start.plan)
    return baseline, await run_variants(variants(start, only=only), baseline, table, **options)


# ---- what is measured


async def test_only_what_failed_is_measured_anew(user):
    table = Table(RAW)

    await tried(user(**RAW_MODE), table)

    assert table.calls
    assert {scenarios for _, scenarios in table.calls} == {("temperature",)}


async def test_if_nothing_failed_all_that_counts_is_measured(user):
    start, table = user(), Table()
    skipped = Result(scenario="sleep-wake", title="-", status="skipped", reason="no GPU")
    baseline = [result("cold-start", NOISE), result("in-flight-kept", 1.0, gates=False), skipped]

    await run_variants(variants(start, only=["engine.dtype"]), baseline, table)

    assert {scenarios for _, scenarios in table.calls} == {("cold-start",)}


async def test_a_refused_variant_is_a_step_with_the_reason(user):
    table = Table(STALE)

    _, steps = await tried(user("gemma4", engine={"load_format": "dummy"}), table, "refit.scope", "engine.dtype")

    refused = next(step for step in steps if step.setting == "refit.scope")
    assert "gemma4-layer-scalar" in refused.error
    assert "refit.scope=state_dict" in refused.error
    assert refused.results == ()
    assert [setting for setting, _ in table.calls] == ["engine.dtype"]


async def test_what_cannot_be_measured_is_a_step_with_the_reason(user):
    _, steps = await tried(user(), Table(STALE, broken="engine.async_scheduling"), "engine.dtype", "engine.async_scheduling")

    assert {step.setting: step.error for step in steps} == {"engine.async_scheduling": "out of memory", "engine.dtype": ""}


async def test_variants_that_come_to_the_same_run_are_measured_once(user):
    table, given = Table(RAW), []

    _, steps = await tried(user(disable=[PROCESSED]), table, f"quirk {PROCESSED}", "engine.logprobs_mode", notify=given.append)

    assert len(table.calls) == 1
    assert steps[0].results == steps[1].results != ()
    assert any("gives the same run as" in line for line in given)


# ---- when no further engine is started


async def test_engines_are_started_until_all_that_failed_is_restored(user):
    start, table = user(**RAW_MODE), Table(RAW, STALE)

    _, steps = await tried(start, table)

    tried_settings = [setting for setting, _ in table.calls]
    last = max(tried_settings.index(name) for name in ("engine.logprobs_mode", "engine.enable_prefix_caching"))
    assert last == len(tried_settings) - 1
    left = {step.error for step in steps if step.error}
    both = "engine.logprobs_mode and engine.enable_prefix_caching"
    assert left == {f"all that failed is restored by {both}; --setting NAME tries it"}


# ---- attribution


@pytest.mark.parametrize(
    ("values", "fault", "setting", "quirk"),
    [
        (RAW_MODE, RAW, "engine.logprobs_mode", PROCESSED),
        ({"engine": {"head_dtype": "float32"}}, HEADS, "train.head_dtype", ""),
        ({}, HEADS, "engine.head_dtype + train.head_dtype", ""),
        ({"engine": {"enable_prefix_caching": True}}, STALE, "engine.enable_prefix_caching", ""),
    ],
)
async def test_a_planted_fault_is_attributed_to_its_setting(values, fault, setting, quirk, user):
    start = user(**values)

    baseline, steps = await tried(start, Table(fault))
    (found, *_) = attributions(baseline, steps, start.plan, start.registry)

    assert found.setting == setting
    assert found.restores == fault.scenarios == (found.scenario,)
    assert found.worsens == ()
    assert found.value_after < LIMIT < found.value_before or found.metric != "max_abs_delta"
    assert [item.id for item in found.quirks] == ([quirk] if quirk else [])
    assert found.is_uncovered is not bool(quirk)


async def test_attributions_do_not_depend_on_the_order_of_the_steps(user):
    start = user(**RAW_MODE)
    baseline, steps = await tried(start, Table(RAW, STALE, HEADS))
    first = attributions(baseline, steps, start.plan, start.registry)

    orders = itertools.islice(itertools.permutations(steps), 0, 5000, 500)

    assert [bool(item.restores) for item in first] == sorted([bool(item.restores) for item in first], reverse=True)
    assert all(attributions(baseline, order, start.plan, start.registry) == first for order in orders)


@pytest.fixture
def attributed(user):
    """Attributes steps that are given by the results that each measured."""
    start = user()

    def ask(before, *steps):
        made = [Step(setting="engine.dtype", before=None, after="float32", how="restart", results=after) for after in steps]
        return attributions(before, made, start.plan, start.registry)

    return ask


@pytest.mark.parametrize(("before", "after"), [(1e-7, 9e-6), (0.0, 1e-5), (0.004, 0.005), (0.2, 0.25), (0.006, 0.0045)])
def test_noise_is_put_down_to_nothing(before, after, attributed):
    assert attributed([result("cold-start", before)], [result("cold-start", after)]) == ()


BROKEN = Result(scenario="cold-start", title="-", status="failed", reason="it took too long")


@pytest.mark.parametrize(
    ("before", "after", "effects", "values"),
    [
        (result("cold-start", 0.0101), result("cold-start", 0.0099), (("cold-start",), ()), (0.0101, 0.0099)),
        (result("cold-start", NOISE), result("cold-start", 0.3), ((), ("cold-start",)), (NOISE, 0.3)),
        (result("cold-start", NOISE), BROKEN, ((), ("cold-start",)), (0, 1)),
        (BROKEN, result("cold-start", NOISE), (("cold-start",), ()), (1, 0)),
        (result("cold-start", 1.0, gates=False), result("cold-start", NOISE, gates=False), ((), ()), (1, NOISE)),
    ],
    ids=["however small", "worse", "does not run", "runs again", "does not count"],
)
def test_a_move_across_a_threshold_restores_or_breaks_a_scenario(before, after, effects, values, attributed):
    unmoved = result("after-refit", NOISE)

    (found,) = attributed([before, unmoved], [after, unmoved])

    assert ((found.restores, found.worsens), found.scenario) == (effects, "cold-start")
    assert (found.value_before, found.value_after) == values


def test_a_step_without_measurements_is_put_down_to_nothing(attributed):
    skipped = Result(scenario="cold-start", title="-", status="skipped", reason="-")

    assert attributed([result("cold-start", 1.0)], [], [skipped]) == ()
