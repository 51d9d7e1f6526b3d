"""An expert-parallel size has no effect until vLLM's flag ``enable_expert_parallel`` is on.

What happens: a configuration that sets an expert-parallel size, but not ``enable_expert_parallel``, gets no expert
parallelism: vLLM cuts every expert into DP x TP slices instead of giving whole experts to ranks. The opposite also happens:
with the flag on and a size of 1, vLLM shards the experts although the user chose no expert parallelism. The outputs are
right in both cases; memory, traffic and speed are not those of the configuration.

What this changes: the flag follows the size: it is on above 1, and off at 1. If the user set the flag to the contrary, the run
is refused.

When it can go: when vLLM has a setting for the size (requested in vllm-project/vllm#28889).

Evidence: a static probe of the condition in vLLM. It shows how vLLM works, not a defect.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Require, Severity, no, report, yes
from quirks_plugins.conditions import EP
from quirks_plugins.dp_ep_strategy.probes import flag_alone_decides
from quirks_plugins.runs import QWEN3_MOE, parallel

_FLAG = "engine.enable_expert_parallel"

QUIRK = Quirk(
    id="ep-flag",
    title="An expert-parallel size has no effect until vLLM's flag is on, and a size of 1 none until it is off",
    flag=ModelFlag.DP_EP_STRATEGY,
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
    references=[
        report("https://github.com/verl-project/verl/pull/5609"),
        report("https://github.com/vllm-project/vllm/issues/28889"),
    ],
    evidence=flag_alone_decides,
    examples=[
        yes(QWEN3_MOE, parallel(tp=2, ep=2), gives={"engine.enable_expert_parallel": True}),
        yes(
            QWEN3_MOE,
            parallel(tp=2, flag=False, ep=2),
            refuses="engine.enable_expert_parallel",
        ),
        yes(QWEN3_MOE, parallel(ep=1), gives={"engine.enable_expert_parallel": False}),
        no(QWEN3_MOE, parallel(flag=True)),
        no(QWEN3_MOE),
    ],
    cost="with experts on several ranks, every MoE layer moves tokens between them",
)
