"""vLLM ignores an expert-parallel size that differs from the group that it forms.

What happens: a configuration whose expert-parallel size is ``4`` where DP x TP is 2 runs without a message, with twice the
expert weights per rank that its author expected; the outputs are right. vLLM has no expert-parallel size of its own. With the
flag on, the ranks of an engine's data-parallel group times their tensor-parallel ranks share the experts, whatever size the
configuration names.

What this changes: a size above 1 is refused if it differs from the group that will be formed. The group has DP x TP ranks for
the strategies ``actors`` and ``engine``, and TP ranks for ``independent``. If no strategy is set, the size must be one of the
two. ``dp-independent-experts`` handles a size above TP with ``independent``.

When it can go: when vLLM has a setting for the size (requested in vllm-project/vllm#28889).

Evidence: a static probe of the definition of the group in vLLM. It shows how vLLM works, not a defect.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, described, no, report, yes
from quirks_plugins.conditions import EP, EXPERT_GROUP, TP, independent, no_strategy, one_group
from quirks_plugins.dp_ep_strategy.probes import group_spans_data_and_tensor
from quirks_plugins.runs import QWEN3_MOE, parallel

_not_the_group = described(
    one_group & EP.differs_from(EXPERT_GROUP),
    "the replicas are one data-parallel group and the size is not DP x TP",
    "the size is DP x TP, or the replicas are no data-parallel group",
)
_not_the_replica = described(
    independent & EP.below(TP),
    "the replicas are independent engines and the size is below TP",
    "the size is at least TP, or the replicas are no independent engines",
)
_neither = described(
    no_strategy & EP.differs_from(TP) & EP.differs_from(EXPERT_GROUP),
    "no strategy is set and the size is neither TP nor DP x TP",
    "a strategy is set, or the size is TP or DP x TP",
)


QUIRK = Quirk(
    id="ep-size",
    title="vLLM takes no expert-parallel size: it forms DP x TP, whatever the configuration calls it",
    flag=ModelFlag.DP_EP_STRATEGY,
    kind=Kind.RULE,
    match=EP.above(1) & (_not_the_group | _not_the_replica | _neither),
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
            "vLLM shares the experts over TP ranks (an engine of its own) or over DP x TP ranks (one data-parallel group), and "
            "parallel.expert_parallel_size is neither",
            "set parallel.expert_parallel_size to engine.tensor_parallel_size or to engine.data_parallel_size x "
            "engine.tensor_parallel_size",
            when=_neither,
        ),
    ],
    severity=Severity.SLOW,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/pull/1495"),
        report("https://github.com/vllm-project/vllm/issues/28889"),
    ],
    evidence=group_spans_data_and_tensor,
    examples=[
        yes(QWEN3_MOE, parallel(dp=2, tp=1, ep=4), refuses="is neither"),
        yes(QWEN3_MOE, parallel(dp=2, tp=1, ep=4, strategy="actors"), refuses="is not that"),
        yes(QWEN3_MOE, parallel(dp=2, tp=2, ep=2, strategy="engine")),
        yes(QWEN3_MOE, parallel(dp=2, tp=4, ep=2, strategy="independent"), refuses="is less"),
        yes(QWEN3_MOE, parallel(dp=1, tp=1, ep=2)),
        no(QWEN3_MOE, parallel(dp=2, tp=1, ep=2)),
        no(QWEN3_MOE, parallel(dp=2, tp=2, ep=4, strategy="actors")),
        no(QWEN3_MOE, parallel(dp=2, tp=2, ep=2)),
        no(QWEN3_MOE, parallel(dp=2, tp=2, ep=2, strategy="independent")),
        no(QWEN3_MOE, parallel(dp=2, tp=2, ep=1, strategy="actors")),
        no(QWEN3_MOE, parallel(dp=2, tp=2)),
    ],
)
