"""DeepEP addresses wrong experts, and EPLB does not start, if the experts are no multiple of the expert-parallel ranks.

What happens: the result depends on the backend. The high-throughput and v2 dispatch of DeepEP compute a rank's first expert as
the rank times the number of experts *of that rank*: with 10 experts on 4 ranks, rank 2 starts at expert 4, where the expert
map has 6. DeepEP's low-latency dispatch gets the number of experts rounded down. EPLB raises a ValueError, MoonEP raises
NotImplementedError, and DeepSeek-V4 stops while it loads (vllm-project/vllm#52435). The default backend,
``allgather_reducescatter``, uses vLLM's expert map, which supports such numbers: it gives the first ranks one expert more
(vllm-project/vllm#21497). These ranks have less room for the KV cache, and all others wait for them in every MoE layer.

What this changes: the run is refused with DeepEP, MoonEP or EPLB. With any other backend the plan advises.

When it can go: when every backend uses the offsets of the expert map; the static probe looks at DeepEP's. No run with DeepEP
was made.
"""

from __future__ import annotations

from quirks_core import Advise, Kind, ModelFlag, Quirk, Refuse, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_plugins.conditions import EXPERT_GROUP, NUM_EXPERTS, TP, sharded_experts, will_be_one_group
from quirks_plugins.runs import QWEN3_MOE, parallel


def _experts(count: int) -> dict[str, object]:
    return {**QWEN3_MOE, "num_experts": count}


_BACKEND, _EPLB = "engine.all2all_backend", "engine.enable_eplb"
_DEEPEP = {_BACKEND: "deepep_high_throughput"}
_needs_even = setting(_BACKEND).matches("^(deepep|moonep)") | setting(_EPLB).is_true()

QUIRK = Quirk(
    id="ep-expert-count",
    title="Experts that ranks cannot share evenly: DeepEP addresses wrong experts, and EPLB does not start",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=(
        sharded_experts
        & (
            (will_be_one_group & NUM_EXPERTS.indivisible_by(EXPERT_GROUP))
            | (~will_be_one_group & NUM_EXPERTS.indivisible_by(TP))
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
    references=[
        report("https://github.com/vllm-project/vllm/issues/52435"),
        report("https://github.com/vllm-project/vllm/pull/21497"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.all2all_utils",
        r"rank_expert_offset=all2all_manager\.rank \* moe\.num_local_experts",
        found_means_affected=True,
    ),
    examples=[
        yes(_experts(8), {**parallel(dp=3, tp=1, flag=True), **_DEEPEP}, refuses="engine.all2all_backend"),
        yes(_experts(8), {**parallel(dp=3, tp=1, flag=True), _EPLB: True}, refuses="EPLB"),
        yes(_experts(160), parallel(dp=12, flag=True), advises="the fullest rank"),
        yes(_experts(8), {**parallel(dp=3, flag=True), _BACKEND: "allgather_reducescatter"}, advises="the fullest rank"),
        yes(_experts(6), parallel(dp=2, tp=2, ep=4)),
        yes(_experts(10), parallel(dp=2, tp=4, flag=True, strategy="independent")),
        no(_experts(8), parallel(dp=2, tp=2, flag=True)),
        no(_experts(6), parallel(dp=2, tp=2, ep=2)),
        no(_experts(6), parallel(dp=4, tp=2, flag=True, strategy="independent")),
        no(QWEN3_MOE, parallel(dp=3, tp=1)),
        no("qwen3", parallel(tp=3, flag=True)),
        unknown(settings=parallel(tp=3, flag=True)),
    ],
)
