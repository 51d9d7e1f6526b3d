"""The expert-parallel size that the user names must be the one that vLLM forms.

What happens: vLLM has no expert-parallel size of its own. With the flag on, the ranks of an engine's data-parallel group times
their tensor-parallel ranks share the experts, whatever anybody calls that number. A configuration that says ``4`` where DP x TP
is 2 runs, with twice the expert weights per rank that its author counted on, and nobody says so.

What this changes: a size above 1 is refused where it is not what will be formed: DP x TP for the strategies ``actors`` and
``engine``, TP for ``independent``, one of the two where the strategy is open. A size beyond TP with ``independent`` is the
subject of ``dp-independent-experts``.

When it can go: when vLLM takes a size (vllm-project/vllm#28889 asks for it).
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Refuse, Severity, report
from quirks_plugins.dp_ep_strategy.conditions import EP, EXPERT_GROUP, TP, independent, no_strategy, one_group
from quirks_plugins.dp_ep_strategy.probes import group_spans_data_and_tensor

_MOE = {"model_type": "qwen3_moe", "num_experts": 8}
_not_the_group = one_group & EP.differs_from(EXPERT_GROUP)
_not_the_replica = independent & EP.below(TP)
_neither = no_strategy & EP.differs_from(TP) & EP.differs_from(EXPERT_GROUP)


def _example(answer: Answer, expert: int, data: int, tensor: int, strategy: str | None = None) -> Example:
    return Example(
        answer=answer,
        config=_MOE,
        settings={
            "engine.data_parallel_size": data,
            "engine.tensor_parallel_size": tensor,
            "parallel.expert_parallel_size": expert,
            **({} if strategy is None else {"parallel.dp_strategy": strategy}),
        },
    )


QUIRK = Quirk(
    id="ep-size",
    title="vLLM takes no expert-parallel size: it forms DP x TP, whatever the configuration calls it",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=EP.above(1) & (_not_the_group | _not_the_replica | _neither),
    adjustments=(
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
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(
        report("https://github.com/NVIDIA-NeMo/RL/pull/1495"),
        report("https://github.com/vllm-project/vllm/issues/28889"),
    ),
    evidence=(group_spans_data_and_tensor,),
    examples=(
        _example(Answer.YES, expert=4, data=2, tensor=1),
        _example(Answer.YES, expert=4, data=2, tensor=1, strategy="actors"),
        _example(Answer.YES, expert=2, data=2, tensor=2, strategy="engine"),
        _example(Answer.YES, expert=2, data=2, tensor=4, strategy="independent"),
        _example(Answer.YES, expert=2, data=1, tensor=1),
        _example(Answer.NO, expert=2, data=2, tensor=1),
        _example(Answer.NO, expert=4, data=2, tensor=2, strategy="actors"),
        _example(Answer.NO, expert=2, data=2, tensor=2),
        _example(Answer.NO, expert=2, data=2, tensor=2, strategy="independent"),
        _example(Answer.NO, expert=1, data=2, tensor=2, strategy="actors"),
        Example(answer=Answer.NO, config=_MOE, settings={"engine.data_parallel_size": 2, "engine.tensor_parallel_size": 2}),
    ),
    since="0.1.0",
)
