"""Which replicas and engines a run can have: the strategy of several replicas, and their GPUs, one row each.

What happens: the wrong strategy can make a run hang, and one that needs more GPUs than there are waits for a placement until
Ray's time limit. Without ``cluster.gpus_per_node`` no GPUs are compared.

When it can go: never, being a choice and arithmetic; ``replica-on-one-node`` when our group can put an engine's ranks on
several nodes (not tried).

Evidence: none from vLLM. Nothing is wrong without ``dp-strategy``; the others are arithmetic; no test has several nodes with
GPUs.
"""

from quirks_core import Default, Kind, Quirk, Refuse, Severity, described, fix, no, report, typed, yes
from quirks_plugins import conditions as run
from quirks_plugins.conditions import GPUS_PER_NODE, NUM_GPUS, NUM_RANKS, REPLICA
from quirks_plugins.runs import OURS, QWEN3_MOE, parallel

_STRATEGY = "parallel.dp_strategy"

# Trainers do not choose: one passed DP on only with EP > 1, and dense models hung (verl-project/verl#5607); another forbids the
# asynchronous engine wherever EP differs from TP (NVIDIA-NeMo/RL#1101). An engine that another program starts (`vllm serve`
# with several ranks) owns its ranks, and leaves no choice.
DP_STRATEGY = Quirk(
    id="dp-strategy",
    title="Data-parallel ranks that share experts must form one group, and ranks that share nothing should not",
    kind=Kind.FEATURE,
    match=run.several_replicas & (~run.one_engine | typed(_STRATEGY)),
    adjustments=[
        Default(
            _STRATEGY,
            "independent",
            reason="no experts are shared beyond a replica (dense model, no expert parallelism, or EP within TP), "
            "so engines that share nothing need no lock-step",
            when=~run.beyond_one_replica,
        ),
        Default(
            _STRATEGY,
            "actors",
            reason="experts are shared over DP x TP, so every engine must be a rank of one vLLM data-parallel group",
            when=run.beyond_one_replica & ~run.synchronous,
        ),
        Default(
            _STRATEGY,
            "engine",
            reason="experts are shared over DP x TP, and external load balancing is the asynchronous engine's: "
            "one engine must own its ranks",
            when=run.beyond_one_replica & run.synchronous,
        ),
    ],
    severity=Severity.CRASH,
    references=[
        report("NVIDIA-NeMo/RL#1101"),
        report("NVIDIA-NeMo/RL/pull/2517"),
        report("verl-project/verl#5607"),
        fix("verl-project/verl/pull/5609"),
    ],
    examples=[
        yes("qwen3", parallel(dp=2), gives={"parallel.dp_strategy": "independent"}),
        yes(QWEN3_MOE, parallel(dp=2, flag=True), gives={"parallel.dp_strategy": "actors"}),
        yes(QWEN3_MOE, parallel(asynchronous=False, dp=2, tp=1, ep=2), gives={"parallel.dp_strategy": "engine"}),
        no("qwen3"),
    ],
    cost="in one group, idle ranks step along with busy ones; independent engines each hold all experts",
)

_replica_too_large = REPLICA.above(GPUS_PER_NODE)
#: What `dp-strategy` makes of an open strategy, too.
_owns_all_ranks = described(
    run.one_engine | (run.no_strategy & run.several_replicas & run.beyond_one_replica & run.synchronous),
    "one engine owns all data-parallel ranks",
    "each data-parallel rank is an engine",
)
_engine_too_large = _owns_all_ranks & NUM_RANKS.above(GPUS_PER_NODE)

# An engine of our group starts its ranks as processes on the GPUs that its actor sees, and an actor has one node. VLLM has no
# such limit: NVIDIA-NeMo/RL#1380 runs replicas over several nodes.
REPLICA_ON_ONE_NODE = Quirk(
    id="replica-on-one-node",
    title="Our group starts an engine's ranks on one node: they must fit its GPUs",
    kind=Kind.RULE,
    match=run.our_worker & (_replica_too_large | _engine_too_large),
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
    references=report("NVIDIA-NeMo/RL/pull/1380"),
    examples=[
        yes(settings=OURS | parallel(nodes=2, gpus=4, dp=1, tp=8, strategy="actors"), refuses="engine.tensor_parallel_size"),
        yes(settings=OURS | parallel(nodes=2, gpus=4, dp=4, tp=2, strategy="engine"), refuses="parallel.dp_strategy: actors"),
        no(settings=OURS | parallel(nodes=2, gpus=4, dp=2, tp=2, strategy="engine")),
        no(settings=OURS | parallel(nodes=2, gpus=8, dp=2, tp=8, strategy="independent")),
        no(settings=parallel(nodes=2, gpus=4, tp=8)),
    ],
)

_left_over = NUM_GPUS.indivisible_by(REPLICA)
_too_few = NUM_GPUS.below(NUM_RANKS)

WORLD_SIZE = Quirk(
    id="world-size",
    title="The cluster's GPUs are no multiple of a replica's, or too few for all replicas",
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
    references=report("NVIDIA-NeMo/RL/pull/1081"),
    examples=[
        yes(settings=parallel(nodes=1, gpus=8, dp=1, tp=3), refuses="no multiple of TP x PP"),
        yes(settings=parallel(nodes=1, gpus=2, dp=4, tp=1), refuses="lower engine.data_parallel_size"),
        no(settings=parallel(dp=64)),
    ],
)
