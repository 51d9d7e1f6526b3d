"""Independent engines never share experts, whatever expert-parallel size is set.

What happens: each of N independent engines holds all experts and logs ``EP rank 0`` of a group of one, although
``enable_expert_parallel`` is on and the expert-parallel size is larger than TP. There is no error, and the outputs are right,
but each engine needs the memory for all experts. An independent engine forms its expert-parallel group over its own TP ranks
only. The published attempt at asynchronous data and expert parallelism was built like that (NVIDIA-NeMo/RL#1495).
EleutherAI/lm-evaluation-harness#3734 forbids such engines because scores fell to about 5 percent; what is described here does
not explain that.

What this changes: the run is refused if the user set ``parallel.dp_strategy: independent`` together with an expert-parallel
size above the tensor-parallel size.

When it can go: never; it follows from the definition of the strategy.

Evidence: a static probe of the definition of the group in vLLM. It shows how vLLM works, not a defect.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, no, report, yes
from quirks_plugins.conditions import EP, TP, independent
from quirks_plugins.dp_ep_strategy.probes import group_spans_data_and_tensor
from quirks_plugins.runs import QWEN3_MOE, parallel

QUIRK = Quirk(
    id="dp-independent-experts",
    title="Independent engines form expert-parallel groups of their own TP ranks only, silently",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=independent & EP.above(TP),
    adjustments=Refuse(
        "engines that share nothing cannot share experts: each would hold all of them and log EP rank 0 of 1 "
        "(of TP, where that is above 1)",
        "set parallel.dp_strategy: actors (or leave it open) with engine.data_parallel_size x engine.tensor_parallel_size "
        "equal to parallel.expert_parallel_size; or lower parallel.expert_parallel_size to engine.tensor_parallel_size",
    ),
    severity=Severity.SLOW,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/pull/1495"),
        report("https://github.com/NVIDIA-NeMo/RL/issues/1101"),
        report("https://github.com/EleutherAI/lm-evaluation-harness/pull/3734"),
    ],
    evidence=group_spans_data_and_tensor,
    examples=[
        yes(
            QWEN3_MOE,
            parallel(dp=2, tp=1, strategy="independent", ep=2),
            refuses="parallel.dp_strategy: actors",
        ),
        no(
            QWEN3_MOE,
            parallel(dp=2, tp=2, strategy="independent", ep=2),
        ),
        no(
            QWEN3_MOE,
            parallel(dp=2, tp=1, strategy="actors", ep=2),
        ),
        no(QWEN3_MOE, parallel(dp=2, tp=1, strategy="independent")),
    ],
)
