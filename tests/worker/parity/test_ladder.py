"""The ladder: what is tried, in which order, what is measured, and what it is put down to.

No engine runs here: the figures come from a table of planted faults. That real faults are attributed to the right setting is
for the tests with an engine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quirks_core import (
    ABSENT,
    Default,
    ModelFlag,
    Patch,
    Quirk,
    QuirksError,
    Registry,
    RunContext,
    Severity,
    UsageError,
    purpose,
    report,
)
from quirks_core.discovery import discover
from quirks_core.plan import State
from quirks_core.switches import Switches, Wishes
from worker import GenerationConfig
from worker.parity.ladder import Rung, attributions, climb, rungs
from worker.parity.records import Result, Step
from worker.parity.settings import SETTINGS
from worker.parity.store import Store
from worker.parity.thresholds import judge, parse_threshold

LIMIT = 0.01
NOISE = 1e-6
THRESHOLDS = (parse_threshold(f"max_abs_delta={LIMIT}"), parse_threshold("mean_exp_abs_delta=1.05"))
PROCESSED = "rollout-logprobs-processed"
HEADS_ALIKE = "fp32-head-both-sides"
#: The quirks of most runs here; others would cure some of the faults by themselves.
QUIRKS = (PROCESSED, "gemma4-layer-scalar", "async-rollout-timeout")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "MODEL_QUIRKS_DISABLE", "MODEL_QUIRKS_FORCE"):
        monkeypatch.delenv(name, raising=False)


@dataclass
class Run:
    """A user's run, resolved with the installed quirks."""

    config: GenerationConfig
    wishes: Wishes
    quirks: Sequence[str]

    def __post_init__(self) -> None:
        self.registry = Registry.load([item for item in discover() if item.name in self.quirks])
        switches = Switches.gather(api=self.wishes, config_file=Wishes(self.config.quirks.disable))
        self.plan = self.registry.resolve(RunContext.gather(self.config), switches)

    def rungs(self, *only: str) -> list[Rung]:
        """What can be changed in it."""
        return rungs(self.config, self.plan, only=only, registry=self.registry, wishes=self.wishes)


@pytest.fixture
def user(tmp_path: Path) -> Callable[..., Run]:
    """A run of a model of some type, whose engine computes in bfloat16."""

    def build(
        model_type: str = "qwen3", *, wishes: Wishes | None = None, installed: Sequence[str] = QUIRKS, **values: Any
    ) -> Run:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "dtype": "bfloat16"}), encoding="utf-8")
        return Run(GenerationConfig.parse({"model": str(tmp_path), **values}), wishes or Wishes(), installed)

    return build


@dataclass
class Fault:
    """Adds to the deltas of some scenarios unless settings have certain values."""

    size: float
    scenarios: tuple[str, ...]
    cure: dict[str, Any]

    def is_cured(self, value: Callable[[str], Any]) -> bool:
        """Whether the settings have the values that mend it."""
        return all(value(slot) == wanted for slot, wanted in self.cure.items())


class Table:
    """Stands for engine and trainer: looks up which faults a run has left, and notes what it was asked."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults
        self.calls: list[tuple[str, Any, tuple[str, ...]]] = []

    def results(self, plan: Any, scenarios: Sequence[str]) -> list[Result]:
        """What a run with that plan would see."""
        left = [fault for fault in self.faults if not fault.is_cured(plan.value)]
        return [result(name, NOISE + sum(fault.size for fault in left if name in fault.scenarios)) for name in scenarios]

    async def __call__(self, rung: Rung, scenarios: Sequence[str]) -> list[Result]:
        """Measures, as `worker.parity.ladder.Measure`."""
        self.calls.append((rung.setting, rung.after, tuple(scenarios)))
        return self.results(rung.plan, scenarios)


def result(scenario: str, delta: float, *, gates: bool = True) -> Result:
    metrics = {"tokens": 100.0, "max_abs_delta": delta, "mean_exp_abs_delta": 1 + delta / 10}
    return Result(scenario=scenario, title="-", gates=gates, metrics=metrics, verdicts=judge(metrics, THRESHOLDS))


RAW = Fault(0.5, ("temperature",), {"engine.logprobs_mode": "processed_logprobs"})
STALE = Fault(0.2, ("after-refit",), {"engine.enable_prefix_caching": False})
HEADS = Fault(0.1, ("cold-start",), {"engine.head_dtype": "float32", "train.head_dtype": "float32"})
SCENARIOS = ("cold-start", "temperature", "after-refit")


async def climbed(run: Run, table: Table, *only: str, **options: Any) -> tuple[list[Result], list[Step]]:
    baseline = table.results(run.plan, SCENARIOS)
    return baseline, await climb(run.rungs(*only), baseline, table, **options)


# ---- which rungs there are


def test_rungs_come_in_order_of_cost_and_what_somebody_asked_for_first(user):
    run = user(engine={"enforce_eager": True, "logprobs_mode": "raw_logprobs"})

    found = run.rungs()

    costs = [rung.how for rung in found]
    assert costs == sorted(costs, key=["rescore", "refit", "restart"].index)
    assert len(set(costs)) == 3
    asked = run.plan.context.typed | {line.slot for line in run.plan.adjustments if line.in_force}
    restarts = [rung.setting in asked for rung in found if rung.how == "restart"]
    assert restarts == sorted(restarts, reverse=True)
    assert {True, False} == set(restarts)


def test_what_leaves_a_mark_on_the_engine_is_the_last_refit(user):
    run = user(refit={"scope": "parameters"})

    assert [rung.setting for rung in run.rungs() if rung.how == "refit"] == ["refit.clear_cache", "refit.scope"]


def test_names_choose_rungs_and_an_unknown_one_is_an_error_with_the_nearest(user):
    run = user()

    chosen = run.rungs("engine.head_dtype+train.head_dtype", "engine.dtype")

    assert {rung.setting for rung in chosen} == {"engine.head_dtype + train.head_dtype", "engine.dtype"}
    with pytest.raises(UsageError, match=r"'engine\.dtpe'; did you mean 'engine\.dtype'\?"):
        run.rungs("engine.dtpe")
    with pytest.raises(UsageError, match=f"did you mean 'quirk {PROCESSED}'"):
        run.rungs("quirk rollout-logprobs-procesed")


def test_a_rung_changes_one_setting_of_the_users_configuration(user):
    run = user(engine={"seed": 3})

    for rung in run.rungs():
        assert rung.config.typed_slots() - run.config.typed_slots() <= set(rung.values)
        assert rung.config.engine.seed == 3
        assert all(rung.plan.value(path) == value for path, value in rung.values.items() if path in SETTINGS)


@pytest.mark.parametrize("layer", ["configuration", "environment", "call", "flag"])
def test_a_quirk_that_is_switched_off_is_tried_whatever_switched_it_off(layer, user, monkeypatch):
    if layer == "environment":
        monkeypatch.setenv("MODEL_QUIRKS_DISABLE", PROCESSED)
    wishes = {"call": Wishes([PROCESSED]), "flag": Wishes(["logprobs"])}.get(layer, Wishes())
    run = user(wishes=wishes, **({"quirks": {"disable": [PROCESSED]}} if layer == "configuration" else {}))

    (rung,) = run.rungs(f"quirk {PROCESSED}")

    assert run.plan.value("engine.logprobs_mode") is None
    assert rung.plan.value("engine.logprobs_mode") == "processed_logprobs"
    assert (rung.before, rung.after, rung.how, rung.error) == ("disabled", "active", "restart", "")
    again = Switches.gather(api=rung.wishes, config_file=Wishes(rung.config.quirks.disable))
    assert run.registry.resolve(RunContext.gather(rung.config), again) == rung.plan


def test_only_quirks_that_would_change_the_run_are_tried(user):
    run = user(quirks={"disable": ["all"]})

    found = {rung.setting.removeprefix("quirk ") for rung in run.rungs() if rung.setting.startswith("quirk ")}

    concerned = {verdict.id for verdict in run.plan.verdicts if verdict.verdict == "yes"}
    assert found == {PROCESSED}
    assert "async-rollout-timeout" in concerned
    assert all(verdict.state is State.DISABLED for verdict in run.plan.verdicts)


async def test_what_quirks_change_besides_is_said(user):
    run, told = user("gemma4"), []

    await climbed(run, Table(STALE), "refit.scope", tell=told.append)

    (rung,) = run.rungs("refit.scope")

    assert (rung.before, rung.after, rung.how) == ("state_dict", "parameters", "restart")
    assert rung.also == {"engine.load_format": ("dummy", "auto")}
    assert told == ['refit.scope = "parameters" (restart); quirks then change engine.load_format: dummy to auto']


def test_what_quirks_change_besides_can_take_more_than_the_setting(user):
    alone, tied = user(), user(installed=[HEADS_ALIKE])

    (cheap,), (dear,) = alone.rungs("train.head_dtype"), tied.rungs("train.head_dtype")

    assert (cheap.how, cheap.also) == ("rescore", {})
    assert (dear.how, dear.also) == ("restart", {"engine.head_dtype": (None, "float32")})


def test_a_quirk_that_only_asks_something_of_the_trainer_takes_no_new_engine(user):
    one_sided = {"engine": {"head_dtype": "float32"}, "quirks": {"disable": [HEADS_ALIKE]}}

    (rung,) = user(installed=[HEADS_ALIKE], **one_sided).rungs(f"quirk {HEADS_ALIKE}")

    assert (rung.how, rung.also) == ("rescore", {"train.head_dtype": (None, "float32")})


def _quirk(name: str, *adjustments: Any, **fields: Any) -> Quirk:
    return Quirk(
        id=name,
        title="-",
        flag=ModelFlag.RUNTIME,
        match=purpose("rollout"),
        adjustments=adjustments,
        severity=Severity.WRONG_OUTPUT,
        references=(report("https://example.org"),),
        **fields,
    )


def test_a_quirk_that_patches_the_engine_takes_a_restart(user, quirk_registry):
    patch = Patch("json.encoder:JSONEncoder.encode_all", replacement="json:dumps", expects=ABSENT)
    config = user().config
    registry = quirk_registry.add(_quirk("a", patch))
    wishes = Wishes(["a"])
    plan = registry.resolve(RunContext.gather(config), disable=["a"])

    (rung,) = rungs(config, plan, only=["quirk a"], registry=registry, wishes=wishes)

    assert (rung.how, rung.also, rung.error) == ("restart", {}, "")


def test_a_quirk_that_another_one_replaces_anyhow_is_not_tried(user, quirk_registry):
    default = Default("engine.enforce_eager", True)
    config = user().config
    registry = quirk_registry.add(_quirk("a", default), _quirk("b", Default("engine.seed", 1), supersedes=("a",)))

    alone, replaced = (registry.resolve(RunContext.gather(config), disable=names) for names in (["a", "b"], ["a"]))

    options = {"only": ["quirk a"], "registry": registry}
    assert [rung.setting for rung in rungs(config, alone, wishes=Wishes(["a", "b"]), **options)] == ["quirk a"]
    assert rungs(config, replaced, wishes=Wishes(["a"]), **options) == []


@pytest.mark.parametrize(
    ("one", "other", "how"),
    [
        ("train.dtype", "train.attn_implementation", "rescore"),
        ("train.dtype", "engine.async_scheduling", "restart"),
        ("refit.clear_cache", "train.dtype", "restart"),  # the user's engine may have been changed meanwhile
    ],
)
def test_a_combination_takes_what_its_parts_take_and_a_refit_a_new_engine(one, other, how, user):
    run = user()

    together = run.rungs(one)[0].combined(run.rungs(other)[0])

    assert (together.setting, together.how) == (f"{one} + {other}", how)
    assert together.config.typed_slots() - run.config.typed_slots() == {one, other}


def test_of_two_settings_that_a_quirk_ties_to_each_other_only_both_together_are_tried(user):
    names = ("engine.head_dtype", "train.head_dtype", "engine.head_dtype + train.head_dtype")

    tied = user(installed=[HEADS_ALIKE]).rungs(*names)
    free = user().rungs(*names)

    assert [rung.setting for rung in tied] == ["engine.head_dtype + train.head_dtype"]
    assert {rung.setting for rung in free} == set(names)


# ---- climbing


async def test_only_what_failed_is_measured_anew(user):
    run, table = user(engine={"logprobs_mode": "raw_logprobs"}), Table(RAW)

    await climbed(run, table)

    assert table.calls
    assert {scenarios for _, _, scenarios in table.calls} == {("temperature",)}


async def test_if_nothing_failed_or_everything_is_asked_for_all_that_counts_is_measured(user):
    run, sound, faulty = user(), Table(), Table(HEADS)

    await climbed(run, sound, "engine.dtype")
    await climbed(run, faulty, "engine.dtype", everything=True)

    assert {scenarios for _, _, scenarios in (*sound.calls, *faulty.calls)} == {SCENARIOS}


async def test_a_scenario_that_does_not_count_or_was_skipped_is_not_measured_anew(user):
    run, table = user(), Table()
    skipped = Result(scenario="sleep-wake", title="-", status="skipped", reason="no GPU")
    baseline = [result("cold-start", NOISE), result("in-flight-kept", 1.0, gates=False), skipped]

    await climb(run.rungs("engine.dtype"), baseline, table)

    assert {scenarios for _, _, scenarios in table.calls} == {("cold-start",)}


async def test_a_rung_that_the_plan_refuses_is_a_step_with_the_reason_and_is_not_measured(user):
    run = user("gemma4", engine={"load_format": "dummy"})
    table = Table(STALE)

    _, steps = await climbed(run, table, "refit.scope", "engine.dtype")

    refused = next(step for step in steps if step.setting == "refit.scope")
    assert "gemma4-layer-scalar" in refused.error
    assert "refit.scope=state_dict" in refused.error
    assert refused.results == ()
    assert [setting for setting, _, _ in table.calls] == ["engine.dtype"]


async def test_a_rung_that_cannot_be_measured_is_noted_and_the_ladder_goes_on(user):
    run, table = user(), Table(STALE)

    async def measure(rung: Rung, scenarios: Sequence[str]) -> list[Result]:
        if rung.setting == "engine.async_scheduling":
            raise QuirksError("the engine died while it started")
        return await table(rung, scenarios)

    steps = await climb(
        run.rungs("engine.async_scheduling", "engine.enable_prefix_caching"), table.results(run.plan, SCENARIOS), measure
    )

    assert {step.setting: step.error for step in steps} == {
        "engine.async_scheduling": "the engine died while it started",
        "engine.enable_prefix_caching": "",
    }


async def test_an_error_that_is_no_ones_finding_ends_the_ladder(user):
    async def measure(*_: object) -> list[Result]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await climb(user().rungs("engine.dtype"), [result("cold-start", 1.0)], measure)


async def test_a_ladder_that_was_broken_off_goes_on_and_tries_again_what_could_not_be_measured(user, tmp_path):
    run, names = user(), ("engine.dtype", "engine.async_scheduling")
    first, second = Table(STALE), Table(STALE)

    async def failing(rung: Rung, scenarios: Sequence[str]) -> list[Result]:
        if rung.setting == "engine.async_scheduling":
            raise QuirksError("out of memory")
        return await first(rung, scenarios)

    await climb(run.rungs(*names), first.results(run.plan, SCENARIOS), failing, store=Store(tmp_path / "s", {}))
    _, steps = await climbed(run, second, *names, store=Store(tmp_path / "s", {}))

    assert [setting for setting, _, _ in first.calls] == ["engine.dtype"]
    assert [setting for setting, _, _ in second.calls] == ["engine.async_scheduling"]
    assert {step.setting for step in steps} == set(names)
    assert all(step.results and not step.error for step in steps)


async def test_a_step_of_other_scenarios_is_not_taken_for_this_one(user, tmp_path):
    run, table = user(), Table(STALE)
    store = Store(tmp_path / "s", {})

    await climb(run.rungs("engine.dtype"), [result("cold-start", 1.0)], table, store=store)
    await climb(run.rungs("engine.dtype"), [result("after-refit", 1.0)], table, store=store)

    assert [scenarios for _, _, scenarios in table.calls][-1] == ("after-refit",)


async def test_two_rungs_that_come_to_the_same_run_are_measured_once(user):
    run, table = user(quirks={"disable": [PROCESSED]}), Table(RAW)
    told: list[str] = []

    _, steps = await climbed(run, table, f"quirk {PROCESSED}", "engine.logprobs_mode", tell=told.append)

    assert len(table.calls) == 1
    assert len(steps) == 2
    assert steps[0].results == steps[1].results != ()
    assert any("comes to the same run as" in line for line in told)


# ---- combinations


async def test_faults_that_no_single_setting_mends_are_mended_together(user):
    both = (Fault(0.3, ("temperature",), RAW.cure), Fault(0.2, ("temperature",), STALE.cure))
    run, table = user(engine={"logprobs_mode": "raw_logprobs"}), Table(*both)

    baseline, steps = await climbed(run, table)

    (together,) = [step for step in steps if " + " in step.setting and "logprobs_mode" in step.setting]
    assert together.setting == "engine.logprobs_mode + engine.enable_prefix_caching"
    assert (together.before, together.after) == (["raw_logprobs", None], ["processed_logprobs", False])
    assert together.results[0].level == "ok"
    (best, *_) = attributions(baseline, steps, run.plan, run.registry)
    assert best.setting == together.setting
    assert best.restores == ("temperature",)
    assert Step.model_validate_json(together.model_dump_json()) == together


async def test_three_settings_are_changed_together_and_never_four(user):
    cures = ({"engine.logprobs_mode": "processed_logprobs"}, STALE.cure, {"engine.async_scheduling": False})
    three = [Fault(0.3 / (1 + n), ("temperature",), cure) for n, cure in enumerate(cures)]
    four = [*three, Fault(0.05, ("temperature",), {"engine.enforce_eager": True})]
    run = user(engine={"logprobs_mode": "raw_logprobs"})

    _, mended = await climbed(run, Table(*three))
    _, broken = await climbed(run, Table(*four))

    restored = [step.setting for step in mended if step.results and step.results[0].level == "ok"]
    assert restored == ["engine.logprobs_mode + engine.enable_prefix_caching + engine.async_scheduling"]
    assert [step for step in broken if step.results and step.results[0].level == "ok"] == []
    assert max(step.setting.count(" + ") for step in broken) == 2


async def test_nothing_is_combined_where_one_setting_is_enough(user):
    run, table = user(engine={"logprobs_mode": "raw_logprobs"}), Table(RAW, STALE)

    _, steps = await climbed(run, table)

    assert {step.setting for step in steps if " + " in step.setting} <= set(SETTINGS)


async def test_two_values_of_one_setting_are_not_combined(user):
    half = Fault(0.3, ("cold-start",), {"train.attn_implementation": "eager"})
    other = Fault(0.2, ("cold-start",), {"train.attn_implementation": "sdpa"})
    run, table = user(), Table(half, other)

    _, steps = await climbed(run, table, "train.attn_implementation")

    assert [step.after for step in steps] == ["eager", "sdpa"]


# ---- attribution


@pytest.mark.parametrize(
    ("values", "fault", "setting", "quirk"),
    [
        ({"engine": {"logprobs_mode": "raw_logprobs"}}, RAW, "engine.logprobs_mode", PROCESSED),
        ({"engine": {"head_dtype": "float32"}}, HEADS, "train.head_dtype", ""),
        ({}, HEADS, "engine.head_dtype + train.head_dtype", ""),
        ({"engine": {"enable_prefix_caching": True}}, STALE, "engine.enable_prefix_caching", ""),
    ],
)
async def test_a_planted_fault_is_put_down_to_its_setting(values, fault, setting, quirk, user):
    run, table = user(**values), Table(fault)

    baseline, steps = await climbed(run, table)
    (found, *_) = attributions(baseline, steps, run.plan, run.registry)

    assert found.setting == setting
    assert found.restores == fault.scenarios == (found.scenario,)
    assert found.worsens == ()
    assert found.value_after < LIMIT < found.value_before or found.metric != "max_abs_delta"
    assert (found.quirks[0].id if quirk else quirk) == quirk


async def test_what_restores_comes_first_and_then_the_largest_factor(user):
    run = user()
    better = Fault(0.02, ("after-refit",), {"engine.enforce_eager": True})
    baseline, steps = await climbed(run, Table(STALE, better, Fault(0.001, SCENARIOS, {"engine.dtype": "float32"})))

    found = attributions(baseline, steps, run.plan, run.registry)

    assert [bool(item.restores) for item in found] == sorted([bool(item.restores) for item in found], reverse=True)
    assert found[0].restores == ("after-refit",)
    assert "engine.enable_prefix_caching" in found[0].setting


async def test_attributions_do_not_depend_on_the_order_of_the_steps(user):
    run = user(engine={"logprobs_mode": "raw_logprobs"})
    baseline, steps = await climbed(run, Table(RAW, STALE, HEADS))
    first = attributions(baseline, steps, run.plan, run.registry)

    orders = itertools.islice(itertools.permutations(steps), 0, 5000, 500)

    assert first
    assert all(attributions(baseline, order, run.plan, run.registry) == first for order in orders)


def step(*results: Result, setting: str = "engine.dtype", after: Any = "float32") -> Step:
    return Step(setting=setting, before=None, after=after, how="restart", results=results)


def test_of_what_restores_nothing_the_largest_factor_comes_first_and_names_decide_among_equals(user):
    run, baseline = user(), [result("cold-start", 1e-4)]
    pairs = [("engine.dtype", 1e-3), ("engine.async_scheduling", 5e-3), ("engine.enforce_eager", 1e-3)]
    steps = [step(result("cold-start", delta), setting=setting) for setting, delta in pairs]

    orders = [attributions(baseline, order, run.plan, run.registry) for order in (steps, steps[::-1])]

    assert [item.setting for item in orders[0]] == ["engine.async_scheduling", "engine.dtype", "engine.enforce_eager"]
    assert orders[0] == orders[1]


def test_how_far_a_metric_moves_is_counted_from_its_value_at_parity(user):
    run = user()

    def ratio(value: float) -> Result:
        metrics = {"mean_exp_abs_delta": value}
        return Result(scenario="cold-start", title="-", metrics=metrics, verdicts=judge(metrics, THRESHOLDS[1:]))

    (found,) = attributions([ratio(1.04)], [step(ratio(1.01))], run.plan, run.registry)

    assert (found.metric, found.value_before, found.value_after) == ("mean_exp_abs_delta", 1.04, 1.01)


def test_noise_is_put_down_to_nothing(user):
    run = user()
    pairs = [(1e-7, 9e-6), (0.0, 1e-5), (0.004, 0.005), (0.2, 0.25), (0.006, 0.0045)]

    for before, after in pairs:
        found = attributions([result("cold-start", before)], [step(result("cold-start", after))], run.plan, run.registry)
        assert found == (), (before, after)


def test_a_move_that_crosses_a_threshold_is_no_noise_however_small(user):
    run = user()

    (found,) = attributions([result("cold-start", 0.0101)], [step(result("cold-start", 0.0099))], run.plan, run.registry)

    assert (found.restores, found.metric) == (("cold-start",), "max_abs_delta")


def test_a_setting_that_makes_it_worse_is_named_with_what_it_breaks(user):
    run = user()
    baseline = [result("cold-start", NOISE), result("after-refit", NOISE)]

    (found,) = attributions(baseline, [step(result("cold-start", NOISE), result("after-refit", 0.3))], run.plan, run.registry)

    assert (found.restores, found.worsens, found.scenario) == ((), ("after-refit",), "after-refit")
    assert found.value_before < found.value_after
    assert found.skeleton == ""


def test_of_a_setting_that_restores_one_scenario_and_breaks_another_the_first_is_shown(user):
    run = user()
    baseline = [result("cold-start", 0.02), result("after-refit", NOISE)]

    (found,) = attributions(baseline, [step(result("cold-start", 0.005), result("after-refit", 5.0))], run.plan, run.registry)

    assert (found.restores, found.worsens, found.scenario) == (("cold-start",), ("after-refit",), "cold-start")


def test_a_scenario_that_no_longer_runs_is_worse_and_one_that_runs_again_is_restored(user):
    run = user()
    broken = Result(scenario="cold-start", title="-", status="failed", reason="it took too long")

    (worse,) = attributions([result("cold-start", NOISE)], [step(broken)], run.plan, run.registry)
    (better,) = attributions([broken], [step(result("cold-start", NOISE))], run.plan, run.registry)

    assert (worse.worsens, worse.value_before, worse.value_after) == (("cold-start",), 0.0, 1.0)
    assert (better.restores, better.value_before, better.value_after) == (("cold-start",), 1.0, 0.0)


def test_a_scenario_that_does_not_count_is_neither_restored_nor_broken(user):
    run = user()
    baseline = [result("in-flight-kept", 1.0, gates=False), result("in-flight-cleared", NOISE)]
    after = step(result("in-flight-kept", NOISE), result("in-flight-cleared", 1.0, gates=False))

    (found,) = attributions(baseline, [after], run.plan, run.registry)

    assert (found.restores, found.worsens) == ((), ())


def test_a_step_that_could_not_be_tried_or_was_skipped_is_put_down_to_nothing(user):
    run = user()
    refused = Step(setting="engine.dtype", before=None, after="float32", how="restart", error="refused")
    skipped = step(Result(scenario="cold-start", title="-", status="skipped", reason="-"))

    assert attributions([result("cold-start", 1.0)], [refused, skipped], run.plan, run.registry) == ()


async def test_what_no_quirk_covers_comes_with_a_declaration_to_begin_with(user):
    run, fault = user(), Fault(0.3, ("after-refit",), {"engine.enforce_eager": True})

    baseline, steps = await climbed(run, Table(fault), "engine.enforce_eager")
    (found,) = attributions(baseline, steps, run.plan, run.registry)

    assert 'Default("engine.enforce_eager", True)' in found.skeleton
    assert all(coverage.state == "not_matched" for coverage in found.quirks)


async def test_what_a_quirk_covers_comes_without(user):
    run = user(engine={"logprobs_mode": "raw_logprobs"})

    baseline, steps = await climbed(run, Table(RAW), "engine.logprobs_mode")
    (found,) = attributions(baseline, steps, run.plan, run.registry)

    assert found.restores == ("temperature",)
    assert found.skeleton == ""
