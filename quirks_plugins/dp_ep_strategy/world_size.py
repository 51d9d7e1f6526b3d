"""If the cluster has fewer GPUs than the replicas need, Ray waits until its time limit.

What happens: with fewer GPUs than DP x TP x PP, Ray waits for a placement that never comes, until the time limit. A second
mistake has the same root: a replica needs TP x PP GPUs, and if the number of GPUs in the cluster is no multiple of that, no
replica can use the remaining GPUs.

What this changes: both are refused before anything is started. Without ``cluster.gpus_per_node`` nothing is compared.

When it can go: never; it is arithmetic.

Evidence: arithmetic. NeMo RL asserts that the GPUs are a multiple of a replica's.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, no, report, yes
from quirks_plugins.conditions import NUM_GPUS, NUM_RANKS, REPLICA
from quirks_plugins.runs import parallel

_left_over = NUM_GPUS.indivisible_by(REPLICA)
_too_few = NUM_GPUS.below(NUM_RANKS)


QUIRK = Quirk(
    id="world-size",
    title="The cluster's GPUs are no multiple of a replica's, or too few for all replicas",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=_left_over | _too_few,
    adjustments=[
        Refuse(
            "the cluster's GPUs (cluster.num_nodes x cluster.gpus_per_node) are no multiple of TP x PP, so they do not hold "
            "whole replicas",
            "set engine.tensor_parallel_size x engine.pipeline_parallel_size to a divisor of the number of GPUs, or correct "
            "cluster.num_nodes and cluster.gpus_per_node",
            when=_left_over,
        ),
        Refuse(
            "the cluster has fewer GPUs (cluster.num_nodes x cluster.gpus_per_node) than the run has ranks (DP x TP x PP)",
            "lower engine.data_parallel_size to the GPUs divided by TP x PP, or raise cluster.num_nodes",
            when=_too_few,
        ),
    ],
    severity=Severity.CRASH,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/1081"),
    examples=[
        yes(settings=parallel(nodes=1, gpus=8, dp=1, tp=3), refuses="no multiple of TP x PP"),
        yes(settings=parallel(nodes=1, gpus=2, dp=4, tp=1), refuses="lower engine.data_parallel_size"),
        yes(settings=parallel(nodes=2, gpus=4, dp=2, tp=4, pp=2)),
        no(settings=parallel(nodes=2, gpus=4, dp=2, tp=4)),
        no(settings=parallel(nodes=1, gpus=8, dp=1, tp=2)),
        no(settings=parallel(dp=64)),
    ],
)
