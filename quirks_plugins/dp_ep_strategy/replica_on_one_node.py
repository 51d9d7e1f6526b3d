"""This project's group starts a replica on one node; if it needs more GPUs than the node has, Ray waits until its time limit.

What happens: Ray never places such a replica. An engine of our group starts its ranks as processes on its own node, on the GPUs
that its actor sees, and an actor has one node. With the strategy ``engine`` one engine owns all data-parallel ranks, so
DP x TP x PP must fit on a node; with the other strategies TP x PP must fit.

What this changes: such a run of our worker or group is refused before anything is started. Without ``cluster.gpus_per_node``
nothing is compared.

When it can go: when the group can put an engine's ranks on several nodes, which it does not try.

Evidence: it follows from how this project's group places engines. It is no limit of vLLM: NVIDIA-NeMo/RL#1380 runs replicas
over several nodes. No test has several nodes with GPUs.
"""

from __future__ import annotations

from typing import Any

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, described, no, report, yes
from quirks_plugins.conditions import (
    GPUS_PER_NODE,
    NUM_RANKS,
    REPLICA,
    beyond_one_replica,
    no_strategy,
    one_engine,
    our_worker,
    several_replicas,
    synchronous,
)
from quirks_plugins.runs import parallel

_replica_too_large = REPLICA.above(GPUS_PER_NODE)
#: What `dp-strategy` makes of an open strategy, too.
_owns_all_ranks = described(
    one_engine | (no_strategy & several_replicas & beyond_one_replica & synchronous),
    "one engine owns all data-parallel ranks",
    "each data-parallel rank is an engine",
)
_engine_too_large = _owns_all_ranks & NUM_RANKS.above(GPUS_PER_NODE)


def _of_group(**sizes: Any) -> dict[str, Any]:
    return {"engine.generate_from_dummy": False, **parallel(**sizes)}


QUIRK = Quirk(
    id="replica-on-one-node",
    title="Our group starts an engine's ranks on one node: they must fit its GPUs",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=our_worker & (_replica_too_large | _engine_too_large),
    adjustments=[
        Refuse(
            "model-quirks' group (not vLLM) needs TP x PP GPUs of one node for a replica, and cluster.gpus_per_node is less",
            "lower engine.tensor_parallel_size x engine.pipeline_parallel_size to cluster.gpus_per_node at most, and raise "
            "engine.data_parallel_size instead",
            when=_replica_too_large,
        ),
        Refuse(
            "model-quirks' group (not vLLM) needs DP x TP x PP GPUs of one node where one engine owns all data-parallel ranks, "
            "and there are fewer",
            "set parallel.dp_strategy: actors (MoE) or independent (dense), or lower engine.data_parallel_size",
            when=_engine_too_large & ~_replica_too_large,
        ),
    ],
    severity=Severity.CRASH,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/1380"),
    examples=[
        yes(settings=_of_group(nodes=2, gpus=4, dp=1, tp=8, strategy="actors"), refuses="engine.tensor_parallel_size"),
        yes(settings=_of_group(nodes=2, gpus=4, dp=1, tp=4, pp=2, strategy="independent")),
        yes(settings=_of_group(nodes=2, gpus=4, dp=4, tp=2, strategy="engine"), refuses="parallel.dp_strategy: actors"),
        no(settings=_of_group(nodes=2, gpus=4, dp=4, tp=2, strategy="actors")),
        no(settings=_of_group(nodes=2, gpus=4, dp=2, tp=2, strategy="engine")),
        no(settings=_of_group(nodes=2, gpus=8, dp=2, tp=8, strategy="independent")),
        no(settings=_of_group(tp=8)),
        no(settings=parallel(nodes=2, gpus=4, tp=8)),
    ],
)
