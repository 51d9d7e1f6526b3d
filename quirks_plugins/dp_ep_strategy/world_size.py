"""The cluster's GPUs must hold whole replicas, and all of them.

What happens: ranks wait for ranks that are never started. A replica takes TP x PP GPUs; where the cluster's GPUs are no
multiple of that, GPUs are left over that no replica can use, which is a mistake in one of the numbers; where there are fewer
GPUs than DP x TP x PP, Ray waits for a placement that never comes, until the time limit.

What this changes: both are refused before anything is started. Without ``cluster.gpus_per_node`` nothing is compared.

When it can go: never; it is arithmetic.

Evidence: arithmetic. NeMo RL asserts the first of the two.
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Refuse, Severity, report
from quirks_plugins.dp_ep_strategy.conditions import NUM_GPUS, NUM_RANKS, REPLICA

_left_over = NUM_GPUS.indivisible_by(REPLICA)
_too_few = NUM_GPUS.below(NUM_RANKS)


def _example(answer: Answer, nodes: int, gpus: int, data: int, tensor: int, pipeline: int = 1) -> Example:
    return Example(
        answer=answer,
        settings={
            "cluster.num_nodes": nodes,
            "cluster.gpus_per_node": gpus,
            "engine.data_parallel_size": data,
            "engine.tensor_parallel_size": tensor,
            "engine.pipeline_parallel_size": pipeline,
        },
    )


QUIRK = Quirk(
    id="world-size",
    title="The cluster's GPUs are no multiple of a replica's, or too few for all replicas",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=_left_over | _too_few,
    adjustments=(
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
    ),
    severity=Severity.CRASH,
    references=(
        report(
            "https://github.com/NVIDIA-NeMo/RL/blob/00ab4ef4fd3cc68354782f42691aa47f8f557e9f/nemo_rl/models/generation/vllm/vllm_generation.py"
        ),
    ),
    examples=(
        _example(Answer.YES, nodes=1, gpus=8, data=1, tensor=3),
        _example(Answer.YES, nodes=1, gpus=2, data=4, tensor=1),
        _example(Answer.YES, nodes=2, gpus=4, data=2, tensor=4, pipeline=2),
        _example(Answer.NO, nodes=2, gpus=4, data=2, tensor=4),
        _example(Answer.NO, nodes=1, gpus=8, data=1, tensor=2),
        Example(answer=Answer.NO, settings={"engine.data_parallel_size": 64}),
    ),
    since="0.1.0",
)
