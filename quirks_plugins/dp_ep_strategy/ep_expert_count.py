"""A number of experts that the expert-parallel ranks cannot share evenly.

What happens: vLLM's expert map copes, it gives the first ranks one expert more (vllm-project/vllm#21497); much around it does
not. DeepEP's high-throughput and v2 dispatch take rank x the experts *of that rank* for a rank's first expert: with 10 experts
on 4 ranks, rank 2 says 4 where the map says 6. DeepEP's low-latency dispatch is told the number rounded down. EPLB raises a
ValueError, some models stop while they load (vllm-project/vllm#52435), MoonEP raises NotImplementedError. Where it does run,
the ranks with one expert more have less room for the KV cache, and all others wait for them in every MoE layer.

What this changes: refused, whatever kernels are in use: the layout depends on the backend, and none gains from it.

When it can go: when every backend takes its offsets from the expert map; the static probe looks at the best known place.
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Refuse, Severity, StaticProbe, report
from quirks_plugins.dp_ep_strategy.conditions import EXPERT_GROUP, NUM_EXPERTS, TP, sharded_experts, will_be_one_group


def _example(answer: Answer, experts: int, data: int, tensor: int, **parallel: object) -> Example:
    return Example(
        answer=answer,
        config={"model_type": "qwen3_moe", "num_experts": experts},
        settings={
            "engine.data_parallel_size": data,
            "engine.tensor_parallel_size": tensor,
            "engine.enable_expert_parallel": "expert_parallel_size" not in parallel,
            **{f"parallel.{name}": value for name, value in parallel.items()},
        },
    )


QUIRK = Quirk(
    id="ep-expert-count",
    title="Experts that ranks cannot share evenly break expert-parallel kernels, EPLB and balance",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=(
        sharded_experts
        & (
            (will_be_one_group & NUM_EXPERTS.indivisible_by(EXPERT_GROUP))
            | (~will_be_one_group & NUM_EXPERTS.indivisible_by(TP))
        )
    ),
    adjustments=(
        Refuse(
            "the ranks that share the experts cannot have equally many: some expert-parallel kernels then address the wrong "
            "experts, EPLB and some models do not start, and every layer waits for the fullest rank",
            "choose engine.data_parallel_size and engine.tensor_parallel_size so that the number of experts is a multiple of "
            "DP x TP (of TP for independent engines), or set engine.enable_expert_parallel: false",
        ),
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(
        report("https://github.com/vllm-project/vllm/issues/52435"),
        report("https://github.com/vllm-project/vllm/pull/21497"),
    ),
    evidence=(
        StaticProbe(
            "vllm.model_executor.layers.fused_moe.all2all_utils",
            r"rank_expert_offset=all2all_manager\.rank \* moe\.num_local_experts",
            found_means_affected=True,
        ),
    ),
    examples=(
        _example(Answer.YES, experts=8, data=3, tensor=1),
        _example(Answer.YES, experts=6, data=2, tensor=2, expert_parallel_size=4),
        _example(Answer.YES, experts=10, data=2, tensor=4, dp_strategy="independent"),
        _example(Answer.NO, experts=8, data=2, tensor=2),
        _example(Answer.NO, experts=6, data=2, tensor=2, expert_parallel_size=2),
        _example(Answer.NO, experts=6, data=4, tensor=2, dp_strategy="independent"),
        Example(
            answer=Answer.NO,
            config={"model_type": "qwen3_moe", "num_experts": 8},
            settings={"engine.data_parallel_size": 3, "engine.tensor_parallel_size": 1},
        ),
        Example(
            answer=Answer.NO,
            config={"model_type": "qwen3"},
            settings={"engine.tensor_parallel_size": 3, "engine.enable_expert_parallel": True},
        ),
        Example(answer=Answer.UNKNOWN, settings={"engine.tensor_parallel_size": 3, "engine.enable_expert_parallel": True}),
    ),
    since="0.1.0",
)
