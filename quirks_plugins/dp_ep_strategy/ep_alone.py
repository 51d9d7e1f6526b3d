"""Expert parallelism with a single rank to share with.

What happens: vLLM shards experts only where DP x TP is above 1. A flag on an engine of one rank, or on each of several engines
that share nothing, is accepted and does nothing: no error, no warning, all experts on every rank.

What this changes: nothing; the plan says so. It is no error: a configuration may serve one rank and many.

When it can go: when vLLM warns itself.
"""

from __future__ import annotations

from quirks_core import Advise, Answer, Example, ModelFlag, Quirk, Severity, report
from quirks_plugins.dp_ep_strategy.conditions import TP, expert_flag, independent, mixture, several_replicas
from quirks_plugins.dp_ep_strategy.probes import flag_alone_decides

_MOE = {"model_type": "qwen3_moe", "num_experts": 8}

QUIRK = Quirk(
    id="ep-alone",
    title="Expert parallelism over one rank is silently none",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=expert_flag & mixture & ~TP.above(1) & (~several_replicas | independent),
    adjustments=(
        Advise(
            "engine.enable_expert_parallel has no effect: each engine is one rank, and holds all experts; "
            "raise engine.tensor_parallel_size, or engine.data_parallel_size with parallel.dp_strategy: actors or engine"
        ),
    ),
    severity=Severity.NOISE,
    references=(report("https://github.com/NVIDIA-NeMo/RL/pull/1495"),),
    evidence=(flag_alone_decides,),
    examples=(
        Example(answer=Answer.YES, config=_MOE, settings={"engine.enable_expert_parallel": True}),
        Example(
            answer=Answer.YES,
            config=_MOE,
            settings={
                "engine.data_parallel_size": 2,
                "engine.enable_expert_parallel": True,
                "parallel.dp_strategy": "independent",
            },
        ),
        Example(
            answer=Answer.NO, config=_MOE, settings={"engine.tensor_parallel_size": 2, "engine.enable_expert_parallel": True}
        ),
        Example(
            answer=Answer.NO, config=_MOE, settings={"engine.data_parallel_size": 2, "engine.enable_expert_parallel": True}
        ),
        Example(answer=Answer.NO, config={"model_type": "qwen3"}, settings={"engine.enable_expert_parallel": True}),
        Example(answer=Answer.NO, config=_MOE),
        Example(answer=Answer.UNKNOWN, settings={"engine.enable_expert_parallel": True}),
    ),
    since="0.1.0",
)
