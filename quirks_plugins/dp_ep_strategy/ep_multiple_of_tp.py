"""An expert-parallel size that is no multiple of the tensor-parallel size cannot be formed.

What happens: vLLM flattens the tensor-parallel ranks of all replicas into one expert-parallel group, so the size of the group
is always a multiple of TP. Any other number is a misunderstanding (for example experts on 4 ranks with replicas of 3), and
NeMo RL asserts the same.

What this changes: such a size is refused with this reason. ``ep-size`` compares the size with the group that vLLM will form.

When it can go: when vLLM has a separate size for expert parallelism (requested in vllm-project/vllm#28889).

Evidence: a static probe of vLLM's definition. It shows how vLLM works, not a defect.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, no, report, yes
from quirks_plugins.conditions import EP, TP
from quirks_plugins.dp_ep_strategy.probes import group_spans_data_and_tensor
from quirks_plugins.runs import QWEN3_MOE, parallel

QUIRK = Quirk(
    id="ep-multiple-of-tp",
    title="vLLM's expert-parallel group is made of whole replicas: its size is a multiple of TP",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=EP.above(1) & EP.indivisible_by(TP),
    adjustments=Refuse(
        "the expert-parallel group is made of all tensor-parallel ranks of every replica, so its size is a multiple of TP",
        "set parallel.expert_parallel_size to a multiple of engine.tensor_parallel_size: that times "
        "engine.data_parallel_size, or that itself",
    ),
    severity=Severity.CRASH,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/1081"),
    evidence=group_spans_data_and_tensor,
    examples=[
        yes(QWEN3_MOE, parallel(tp=4, ep=6), refuses="parallel.expert_parallel_size"),
        yes(QWEN3_MOE, parallel(tp=4, ep=2)),
        no(QWEN3_MOE, parallel(tp=4, ep=8)),
        no(QWEN3_MOE, parallel(tp=4, ep=4)),
        no(QWEN3_MOE, parallel(tp=1, ep=3)),
        no(QWEN3_MOE, parallel(tp=4, ep=1)),
        no(QWEN3_MOE, parallel(tp=4)),
    ],
)
