"""The rules of the flag DP_EP_STRATEGY together: over a grid of runs, all violations are named, or a strategy is chosen."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from quirks_core import ModelFacts, ModelFlag, Plan, Refuse, Registry, Require, RunContext, Switches, Wishes
from quirks_core.loaded import Loaded
from quirks_core.resolve import resolve

KINDS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "qwen3"},
    "8 experts": {"model_type": "qwen3_moe", "num_experts": 8},
    "6 experts": {"model_type": "qwen3_moe", "num_experts": 6},
}


class Run(NamedTuple):
    """A point of the grid; None is left open."""

    kind: str = "8 experts"
    asynchronous: bool = True
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int | None = None
    flag: bool | None = None
    strategy: str | None = None
    gpus: int | None = None

    def context(self) -> RunContext:
        """The facts, as `GenerationConfig` gives them: defaults are there, and not typed."""
        typed = {
            "engine.async_engine": self.asynchronous,
            "engine.data_parallel_size": self.dp,
            "engine.tensor_parallel_size": self.tp,
            "engine.pipeline_parallel_size": self.pp,
            "parallel.expert_parallel_size": self.ep,
            "engine.enable_expert_parallel": self.flag,
            "parallel.dp_strategy": self.strategy,
            "cluster.gpus_per_node": self.gpus,
        }
        typed = {slot: value for slot, value in typed.items() if value is not None}
        defaults = {"engine.enable_expert_parallel": False, "cluster.num_nodes": 1}
        model = ModelFacts(name="model", path="model", config=KINDS[self.kind])
        return RunContext(model=model, settings={**defaults, **typed}, typed=frozenset(typed))


def chosen(run: Run) -> str | None:
    """The strategy that a run ends up with, by the words of the documentation."""
    if run.strategy or run.dp == 1:
        return run.strategy
    shared = run.ep > run.tp if run.ep else bool(run.flag)
    if not shared:
        return "independent"
    return "actors" if run.asynchronous else "engine"


def sharing(run: Run) -> int:
    """The number of ranks over which vLLM shares the experts, if it is told to."""
    return run.tp if chosen(run) == "independent" else run.dp * run.tp


def violations(run: Run) -> Iterator[str]:
    """The rules that a run breaks."""
    asked = run.ep or 0
    shards = bool(run.flag) or asked > 1
    if run.kind == "dense":
        if shards:
            yield "ep-dense"
        if run.strategy == "actors" and run.dp > 1:
            yield "dp-dense-group"
    elif shards and int(run.kind[0]) % sharing(run):
        yield "ep-expert-count"
    if asked > 1:
        possible = {
            None: {run.tp, run.dp * run.tp},
            "independent": set(range(run.tp, 100)),  # more than TP is the trap, which has a rule of its own
        }.get(run.strategy, {run.dp * run.tp})
        if asked not in possible:
            yield "ep-size"
        if asked % run.tp:
            yield "ep-multiple-of-tp"
        if run.strategy == "independent" and asked > run.tp:
            yield "dp-independent-experts"
    if run.ep is not None and run.flag is not None and run.flag is not (asked > 1):
        yield "ep-flag"
    if run.pp > 1 and not run.asynchronous:
        yield "pp-needs-async"
    if run.gpus is not None:
        replica = run.tp * run.pp
        if run.gpus % replica or run.gpus < run.dp * replica:
            yield "world-size"
        if max(replica, run.dp * replica if chosen(run) == "engine" else 0) > run.gpus:
            yield "replica-on-one-node"


@pytest.fixture(scope="module")
def rules(registry: Registry) -> tuple[Loaded, ...]:
    """The built-in quirks of the flag."""
    return tuple(item for item in registry.loaded if item.quirk.flag == ModelFlag.DP_EP_STRATEGY)


def refused_by(plan: Plan) -> set[str]:
    """The quirks that stop a run."""
    return {quirk.id for refusal in plan.refusals for quirk in refusal.quirks}


STRATEGIES = (None, "actors", "engine", "independent")


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_run_of_the_grid_names_all_its_violations_and_gets_its_strategy(rules, kind, strategy):
    grid = itertools.product(
        [kind], [True, False], [1, 2, 3], [1, 2, 4], [1, 2], [None, 1, 2, 4, 6], [None, True, False], [strategy], [None, 4, 8]
    )
    wrong, counted = {}, 0

    for point in grid:
        run = Run(*point)
        plan = resolve(run.context(), rules)
        counted += 1
        got = (refused_by(plan), plan.value("parallel.dp_strategy"), plan.value("engine.enable_expert_parallel"))
        experts = run.ep > 1 if run.ep is not None and "ep-flag" not in got[0] else bool(run.flag)
        if got != (set(violations(run)), chosen(run), experts):
            wrong[run] = (got, (set(violations(run)), chosen(run), experts))

    assert counted == 1620
    assert wrong == {}


@pytest.mark.parametrize(
    ("run", "strategy"),
    [
        (Run("dense", dp=2), "independent"),
        (Run("dense", dp=2, asynchronous=False), "independent"),
        (Run("8 experts", dp=2), "independent"),
        (Run("8 experts", dp=2, tp=2, ep=2), "independent"),
        (Run("8 experts", dp=2, ep=1), "independent"),
        (Run("8 experts", dp=2, ep=2), "actors"),
        (Run("8 experts", dp=2, flag=True), "actors"),
        (Run("8 experts", dp=2, tp=2, flag=True), "actors"),
        (Run("8 experts", dp=2, tp=2, ep=4), "actors"),
        (Run("8 experts", dp=2, tp=2, pp=2, ep=4, gpus=8), "actors"),
        (Run("8 experts", dp=2, ep=2, asynchronous=False), "engine"),
        (Run("8 experts", dp=2, ep=2, strategy="engine"), "engine"),
        (Run("dense", dp=2, strategy="engine"), "engine"),
        (Run("8 experts", dp=1, tp=4, ep=4), None),
        (Run("dense"), None),
    ],
    ids=str,
)
def test_runs_that_work_pass_with_their_strategy(rules, run, strategy):
    plan = resolve(run.context(), rules)

    assert plan.refusals == ()
    assert plan.value("parallel.dp_strategy") == strategy


@pytest.mark.parametrize(
    ("run", "ids"),
    [
        # the published attempt: engines that share nothing, and experts that were to be shared
        (Run("8 experts", dp=2, ep=2, strategy="independent"), {"dp-independent-experts"}),
        (Run("dense", dp=2, ep=2, flag=True, strategy="actors"), {"ep-dense", "dp-dense-group"}),
        (Run("8 experts", dp=2, tp=4, ep=6, gpus=4), {"ep-size", "ep-multiple-of-tp", "world-size"}),
        (Run("8 experts", dp=3, ep=3), {"ep-expert-count"}),
        (Run("8 experts", tp=2, pp=4, asynchronous=False, gpus=4), {"pp-needs-async", "world-size", "replica-on-one-node"}),
        (Run("8 experts", dp=2, tp=2, ep=2, strategy="actors"), {"ep-size"}),
        (Run("8 experts", tp=2, ep=2, flag=False), {"ep-flag"}),
    ],
    ids=lambda value: ",".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_all_violations_of_a_run_are_named_at_once(rules, run, ids):
    assert refused_by(resolve(run.context(), rules)) == ids


@pytest.mark.parametrize("config", [{}, {"model_type": "acme_moe"}], ids=["nothing known", "a MoE without a number"])
def test_a_model_that_does_not_say_whether_it_has_experts_is_asked_about_and_not_refused(rules, config):
    run = Run(dp=2, tp=1, ep=2, strategy="actors")
    model = ModelFacts(name="model", path="model", config=config)
    context = run.context().model_copy(update={"model": model})

    plan = resolve(context, rules)

    assert plan.refusals == ()
    assert {warning.partition(" ")[0] for warning in plan.warnings if "cannot be decided" in warning} == {
        "dp-dense-group",
        "ep-dense",
        "ep-expert-count",
    }


def test_each_rule_can_be_switched_off_by_id_and_by_flag(rules):
    run = Run("dense", dp=2, tp=4, ep=6, pp=2, strategy="actors", asynchronous=False, gpus=4).context()
    broken = refused_by(resolve(run, rules))

    left = {name: refused_by(resolve(run, rules, Switches.gather(command_line=Wishes([name]), environ={}))) for name in broken}

    assert len(broken) > 5
    assert left == {name: broken - {name} for name in broken}
    assert refused_by(resolve(run, rules, Switches.gather(command_line=Wishes(["dp_ep_strategy"]), environ={}))) == set()


def test_every_refusal_and_requirement_names_a_key_to_set_and_its_value(rules):
    stops = [item for loaded in rules for item in loaded.quirk.adjustments if isinstance(item, Refuse | Require)]

    silent = [item for item in stops if not re.search(r"(engine|parallel|cluster)\.\w+(: | to | x )", item.remedy)]

    assert len(stops) > 12
    assert silent == []


def test_the_order_of_the_rules_changes_nothing(rules):
    run = Run("6 experts", dp=2, tp=2, pp=2, ep=2, strategy="engine", asynchronous=False, gpus=4).context()

    assert resolve(run, rules).to_json() == resolve(run, rules[::-1]).to_json()
