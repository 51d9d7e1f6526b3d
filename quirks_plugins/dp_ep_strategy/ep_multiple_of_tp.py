"""An expert-parallel size that is no multiple of the tensor-parallel size.

What happens: vLLM flattens the tensor-parallel ranks of all replicas into one expert-parallel group, so its size is always a
multiple of TP. Any other number is a misunderstanding (experts of 4 ranks on replicas of 3), and NeMo RL asserts the same.

What this changes: such a size is refused with this reason; ``ep-size`` compares with what will be formed.

When it can go: when vLLM takes sizes for experts of their own (vllm-project/vllm#28889 asks for it).
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Refuse, Severity, report
from quirks_plugins.dp_ep_strategy.conditions import EP, TP
from quirks_plugins.dp_ep_strategy.probes import group_spans_data_and_tensor

_MOE = {"model_type": "qwen3_moe", "num_experts": 8}


def _example(answer: Answer, expert: int, tensor: int) -> Example:
    settings = {"engine.tensor_parallel_size": tensor, "parallel.expert_parallel_size": expert}
    return Example(answer=answer, config=_MOE, settings=settings)


QUIRK = Quirk(
    id="ep-multiple-of-tp",
    title="vLLM's expert-parallel group is made of whole replicas: its size is a multiple of TP",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=EP.above(1) & EP.indivisible_by(TP),
    adjustments=(
        Refuse(
            "the expert-parallel group is made of all tensor-parallel ranks of every replica, so its size is a multiple of TP",
            "set parallel.expert_parallel_size to a multiple of engine.tensor_parallel_size: that times "
            "engine.data_parallel_size, or that itself",
        ),
    ),
    severity=Severity.CRASH,
    references=(report("https://github.com/NVIDIA-NeMo/RL/pull/1081"),),
    evidence=(group_spans_data_and_tensor,),
    examples=(
        _example(Answer.YES, expert=6, tensor=4),
        _example(Answer.YES, expert=2, tensor=4),
        _example(Answer.NO, expert=8, tensor=4),
        _example(Answer.NO, expert=4, tensor=4),
        _example(Answer.NO, expert=3, tensor=1),
        _example(Answer.NO, expert=1, tensor=4),
        Example(answer=Answer.NO, config=_MOE, settings={"engine.tensor_parallel_size": 4}),
    ),
    since="0.1.0",
)
