"""What vLLM makes of an expert-parallel size and of its flag, and what it cannot make, one row each.

What happens: vLLM takes no expert-parallel size: with the flag, all DP x TP ranks of a data-parallel group share the experts.
A configuration that expects another group runs without a message: the outputs are right, but memory, traffic and speed are not
what it says. Experts that the ranks cannot share evenly are another matter, which depends on the backend.

When it can go: when vLLM has a setting for the size (requested in vllm-project/vllm#28889); ``ep-alone`` when vLLM itself
warns, ``ep-expert-count`` when every backend uses the offsets of the expert map.

Evidence: static probes of vLLM's definitions. They show how vLLM works, not a defect. No run with DeepEP was made.
"""

from quirks_core import Advise, Kind, Quirk, Refuse, Require, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import setting
from quirks_plugins import conditions as run
from quirks_plugins.conditions import EP, EXPERT_GROUP, NUM_EXPERTS, TP
from quirks_plugins.runs import QWEN3_MOE, parallel

_FLAG, _BACKEND, _EPLB = "engine.enable_expert_parallel", "engine.all2all_backend", "engine.enable_eplb"

#: The published attempt at asynchronous data and expert parallelism: independent engines with a size above TP.
_ATTEMPT = report("NVIDIA-NeMo/RL/pull/1495")
_SIZE_WANTED = report("vllm-project/vllm#28889")

#: The ranks of an expert-parallel group are those of all data-parallel replicas times their tensor-parallel ranks.
_group_spans_data_and_tensor = StaticProbe(
    "vllm.distributed.parallel_state",
    r"-1,\s+data_parallel_size\s+\* prefill_context_model_parallel_size\s+\* tensor_model_parallel_size",
)
#: Only the flag shards experts, and only where there is more than one rank.
_flag_alone_decides = StaticProbe(
    "vllm.model_executor.layers.fused_moe.config",
    r"dp_size_ \* pcp_size_ \* tp_size_ > 1\s+and vllm_parallel_config\.enable_expert_parallel",
)

# It only advises: the same configuration may serve one rank and many.
EP_ALONE = Quirk(
    id="ep-alone",
    title="Expert parallelism over one rank is silently none",
    kind=Kind.RULE,
    match=run.expert_flag & run.mixture & ~TP.above(1) & (~run.several_replicas | run.independent),
    adjustments=Advise(
        "engine.enable_expert_parallel has no effect: each engine is one rank, and holds all experts; "
        "raise engine.tensor_parallel_size, or engine.data_parallel_size with parallel.dp_strategy: actors or engine"
    ),
    severity=Severity.NOISE,
    references=_ATTEMPT,
    evidence=_flag_alone_decides,
    examples=[
        yes(QWEN3_MOE, parallel(flag=True), advises="engine.enable_expert_parallel has no effect"),
        yes(QWEN3_MOE, parallel(dp=2, flag=True, strategy="independent")),
        no(QWEN3_MOE, parallel(tp=2, flag=True)),
        no(QWEN3_MOE, parallel(dp=2, flag=True)),
        no("qwen3", parallel(flag=True)),
        no(QWEN3_MOE),
        unknown(settings=parallel(flag=True)),
    ],
)

EP_FLAG = Quirk(
    id="ep-flag",
    title="An expert-parallel size has no effect until vLLM's flag is on, and a size of 1 none until it is off",
    kind=Kind.RULE,
    match=EP.is_set(),
    adjustments=[
        Require(
            _FLAG,
            True,
            reason="vLLM gives whole experts to ranks only with the flag; without it, it cuts every expert into slices",
            remedy="set engine.enable_expert_parallel: true (or leave it open), or parallel.expert_parallel_size: 1",
            when=EP.above(1),
        ),
        Require(
            _FLAG,
            False,
            reason="with the flag, vLLM shares the experts over all ranks, and the size asked for is 1",
            remedy="set engine.enable_expert_parallel: false (or leave it open), or drop parallel.expert_parallel_size",
            when=~EP.above(1),
        ),
    ],
    severity=Severity.SLOW,
    references=[report("verl-project/verl/pull/5609"), _SIZE_WANTED],
    evidence=_flag_alone_decides,
    examples=[
        yes(QWEN3_MOE, parallel(tp=2, ep=2), gives={"engine.enable_expert_parallel": True}),
        yes(QWEN3_MOE, parallel(tp=2, flag=False, ep=2), refuses="engine.enable_expert_parallel"),
        yes(QWEN3_MOE, parallel(ep=1), gives={"engine.enable_expert_parallel": False}),
        no(QWEN3_MOE),
    ],
    cost="with experts on several ranks, every MoE layer moves tokens between them",
)

_not_the_group = described(
    run.one_group & EP.differs_from(EXPERT_GROUP),
    "the replicas are one data-parallel group and the size is not DP x TP",
    "the size is DP x TP, or the replicas are no data-parallel group",
)
_not_the_replica = described(
    run.independent & EP.below(TP),
    "the replicas are independent engines and the size is below TP",
    "the size is at least TP, or the replicas are no independent engines",
)
_beyond_the_replica = described(
    run.independent & EP.above(TP),
    "the replicas are independent engines and the size is above TP",
    "the size is at most TP, or the replicas are no independent engines",
)
_neither = described(
    run.no_strategy & EP.differs_from(TP) & EP.differs_from(EXPERT_GROUP),
    "no strategy is set and the size is neither TP nor DP x TP",
    "a strategy is set, or the size is TP or DP x TP",
)

# A size that is no multiple of TP is always another one. EleutherAI/lm-evaluation-harness#3734 forbids independent engines with
# a size above TP because scores fell to about 5 percent, which this does not explain: outputs are right.
EP_SIZE = Quirk(
    id="ep-size",
    title="vLLM takes no expert-parallel size: it forms DP x TP, whatever the configuration calls it",
    kind=Kind.RULE,
    match=EP.above(1) & (_not_the_group | _not_the_replica | _beyond_the_replica | _neither),
    adjustments=[
        Refuse(
            "in one data-parallel group all DP x TP ranks share the experts, and parallel.expert_parallel_size is not that",
            "set parallel.expert_parallel_size to engine.data_parallel_size x engine.tensor_parallel_size, or leave it open "
            "and set engine.enable_expert_parallel: true",
            when=_not_the_group,
        ),
        Refuse(
            "in an engine of its own all TP ranks share the experts, and parallel.expert_parallel_size is less",
            "set parallel.expert_parallel_size to engine.tensor_parallel_size, or to 1 for no expert parallelism",
            when=_not_the_replica,
        ),
        Refuse(
            "engines that share nothing cannot share experts: each would hold all of them and log EP rank 0 of 1 "
            "(of TP, where that is above 1)",
            "set parallel.dp_strategy: actors (or leave it open) with engine.data_parallel_size x engine.tensor_parallel_size "
            "equal to parallel.expert_parallel_size; or lower parallel.expert_parallel_size to engine.tensor_parallel_size",
            when=_beyond_the_replica,
        ),
        Refuse(
            "vLLM shares the experts over TP ranks (an engine of its own) or over DP x TP ranks (one data-parallel group), and "
            "parallel.expert_parallel_size is neither",
            "set parallel.expert_parallel_size to engine.tensor_parallel_size or to engine.data_parallel_size x "
            "engine.tensor_parallel_size",
            when=_neither,
        ),
    ],
    severity=Severity.SLOW,
    references=[
        _ATTEMPT,
        _SIZE_WANTED,
        report("NVIDIA-NeMo/RL#1101"),
        report("NVIDIA-NeMo/RL/pull/1081"),
        report("EleutherAI/lm-evaluation-harness/pull/3734"),
    ],
    evidence=_group_spans_data_and_tensor,
    examples=[
        yes(QWEN3_MOE, parallel(tp=4, ep=6), refuses="is neither"),
        yes(QWEN3_MOE, parallel(dp=2, tp=1, ep=4, strategy="actors"), refuses="is not that"),
        yes(QWEN3_MOE, parallel(dp=2, tp=4, ep=2, strategy="independent"), refuses="is less"),
        yes(QWEN3_MOE, parallel(dp=2, tp=1, ep=2, strategy="independent"), refuses="parallel.dp_strategy: actors"),
        no(QWEN3_MOE, parallel(dp=2, tp=2, ep=4, strategy="actors")),
        no(QWEN3_MOE, parallel(dp=2, tp=2, ep=2, strategy="independent")),
    ],
)


def _experts(count: int) -> dict[str, object]:
    return {**QWEN3_MOE, "num_experts": count}


_needs_even = setting(_BACKEND).matches("^(deepep|moonep)") | setting(_EPLB).is_true()

# DeepEP's high-throughput and v2 dispatch take the rank times the number of experts *of that rank*: with 10 experts on 4 ranks,
# rank 2 starts at expert 4, and the expert map has 6. Its low-latency dispatch gets the number rounded down. EPLB raises a
# ValueError, MoonEP NotImplementedError, and DeepSeek-V4 stops while it loads (vllm-project/vllm#52435). The default backend,
# `allgather_reducescatter`, uses the expert map, which gives the first ranks one more (vllm-project/vllm#21497).
EP_EXPERT_COUNT = Quirk(
    id="ep-expert-count",
    title="Experts that ranks cannot share evenly: DeepEP addresses wrong experts, and EPLB does not start",
    kind=Kind.RULE,
    match=(
        run.sharded_experts
        & (
            (run.will_be_one_group & NUM_EXPERTS.indivisible_by(EXPERT_GROUP))
            | (~run.will_be_one_group & NUM_EXPERTS.indivisible_by(TP))
        )
    ),
    adjustments=[
        Refuse(
            "the ranks that share the experts cannot have equally many: DeepEP then addresses the wrong experts, and EPLB and "
            "MoonEP do not start",
            "choose engine.data_parallel_size and engine.tensor_parallel_size so that the number of experts is a multiple of "
            "DP x TP (of TP for independent engines), or leave engine.all2all_backend and engine.enable_eplb open",
            when=_needs_even,
        ),
        Advise(
            "the ranks that share the experts cannot have equally many: every MoE layer waits for the fullest rank, which also "
            "has the least room for the KV cache",
            when=~_needs_even,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#52435"), report("vllm-project/vllm/pull/21497")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.all2all_utils",
        r"rank_expert_offset=all2all_manager\.rank \* moe\.num_local_experts",
    ),
    examples=[
        yes(_experts(8), {**parallel(dp=3, flag=True), _BACKEND: "deepep_high_throughput"}, refuses=_BACKEND),
        yes(_experts(8), {**parallel(dp=3, flag=True), _EPLB: True}, refuses="EPLB"),
        yes(_experts(8), {**parallel(dp=3, flag=True), _BACKEND: "allgather_reducescatter"}, advises="the fullest rank"),
        yes(_experts(6), parallel(dp=2, tp=2, ep=4)),
        yes(_experts(10), parallel(dp=2, tp=4, flag=True, strategy="independent")),
        no(_experts(6), parallel(dp=2, tp=2, ep=2)),
        no(_experts(6), parallel(dp=4, tp=2, flag=True, strategy="independent")),
        unknown(settings=parallel(tp=3, flag=True)),
    ],
)
