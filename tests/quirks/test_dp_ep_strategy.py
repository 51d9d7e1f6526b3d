"""The rules of the flag DP_EP_STRATEGY together: all violations of a run are named, or a strategy is chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from quirks_core import ModelFlag, RunContext, yes
from quirks_core.plan.resolve import resolve
from quirks_plugins.runs import parallel

KINDS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "qwen3"},
    "8 experts": {"model_type": "qwen3_moe", "num_experts": 8},
    "6 experts": {"model_type": "qwen3_moe", "num_experts": 6},
}
STRATEGY, FLAG = "parallel.dp_strategy", "engine.enable_expert_parallel"


class Run(NamedTuple):
    """A run; None is left open."""

    kind: str = "8 experts"
    asynchronous: bool = True
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int | None = None
    flag: bool | None = None
    strategy: str | None = None
    gpus: int | None = None
    nodes: int = 1
    eplb: bool = False

    def context(self) -> RunContext:
        """The facts, as `GenerationConfig` gives them: defaults are there, and not typed."""
        sizes = {name: value for name, value in self._asdict().items() if name not in ("kind", "eplb") and value is not None}
        typed = {**parallel(**sizes), **({"engine.enable_eplb": True} if self.eplb else {})}
        return yes(KINDS[self.kind], typed, defaults={FLAG: False, "engine.generate_from_dummy": False}).context()


def chosen(run: Run) -> str | None:
    """The strategy that a run ends up with, by the words of the documentation."""
    if run.strategy or run.dp == 1:
        return run.strategy
    shared = run.ep > run.tp if run.ep else bool(run.flag)
    if not shared:
        return "independent"
    return "actors" if run.asynchronous else "engine"


def violations(run: Run) -> Iterator[str]:
    """The rules that a run breaks."""
    asked = run.ep or 0
    shards = bool(run.flag) or asked > 1
    ranks = run.tp if chosen(run) == "independent" else run.dp * run.tp
    if run.kind != "dense" and run.eplb and shards and int(run.kind[0]) % ranks:
        yield "ep-expert-count"
    if asked > 1:
        possible = {
            None: {run.tp, run.dp * run.tp},
            "independent": {run.tp},
        }.get(run.strategy, {run.dp * run.tp})
        if asked not in possible:
            yield "ep-size"
    if run.ep is not None and run.flag is not None and run.flag is not (asked > 1):
        yield "ep-flag"
    if run.gpus is not None:
        replica = run.tp * run.pp
        if run.nodes * run.gpus % replica or run.nodes * run.gpus < run.dp * replica:
            yield "world-size"
        if max(replica, run.dp * replica if chosen(run) == "engine" else 0) > run.gpus:
            yield "replica-on-one-node"


def test_every_run_of_a_grid_is_judged_by_all_rules(registry, refused_by):
    rules = [item for item in registry.loaded if item.quirk.flag == ModelFlag.DP_EP_STRATEGY]
    strategies = (None, "actors", "engine", "independent")
    sizes = itertools.product(KINDS, [True, False], [1, 2], [1, 2, 3], [1], [None, 1, 2, 4, 6], [None, True, False], strategies)
    clusters = itertools.product(
        ["8 experts"], [True, False], [1, 2], [1, 4], [1, 2], [None], [None, True], strategies, [4, 8], [1, 2]
    )
    wrong, broken = {}, set()

    for point in itertools.chain(sizes, clusters):
        run = Run(*point, eplb=True)
        plan = resolve(run.context(), rules)
        got = (refused_by(plan), plan.value(STRATEGY), plan.value(FLAG))
        experts = run.ep > 1 if run.ep is not None and "ep-flag" not in got[0] else bool(run.flag)
        expected = (set(violations(run)), chosen(run), experts)
        broken |= expected[0]
        if got != expected:
            wrong[run] = (got, expected)

    assert wrong == {}
    assert broken == {item.quirk.id for item in rules} - {"dp-environment", "dp-strategy", "ep-alone"}
