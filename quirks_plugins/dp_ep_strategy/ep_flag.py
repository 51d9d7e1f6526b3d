"""An expert-parallel size is only a number until vLLM's flag is on.

What happens: without ``enable_expert_parallel`` vLLM cuts every expert into DP x TP slices instead of giving whole experts to
ranks, so a configuration that names a size and leaves the flag alone gets none of it. With the flag on and a size of 1, the
opposite: experts are sharded although the user asked for none of that.

What this changes: the flag follows the size: on above 1, off at 1. A flag that the user typed to the contrary stops the run.

When it can go: when vLLM takes a size (vllm-project/vllm#28889 asks for it).
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Require, Severity, report
from quirks_plugins.dp_ep_strategy.conditions import EP
from quirks_plugins.dp_ep_strategy.probes import flag_alone_decides

_MOE = {"model_type": "qwen3_moe", "num_experts": 8}
_FLAG = "engine.enable_expert_parallel"

QUIRK = Quirk(
    id="ep-flag",
    title="An expert-parallel size has no effect until vLLM's flag is on, and a size of 1 none until it is off",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=EP.is_set(),
    adjustments=(
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
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(
        report("https://github.com/verl-project/verl/pull/5609"),
        report("https://github.com/vllm-project/vllm/issues/28889"),
    ),
    evidence=(flag_alone_decides,),
    examples=(
        Example(
            answer=Answer.YES,
            config=_MOE,
            settings={"engine.tensor_parallel_size": 2, "parallel.expert_parallel_size": 2},
        ),
        Example(
            answer=Answer.YES,
            config=_MOE,
            settings={
                "engine.tensor_parallel_size": 2,
                "engine.enable_expert_parallel": False,
                "parallel.expert_parallel_size": 2,
            },
        ),
        Example(answer=Answer.YES, config=_MOE, settings={"parallel.expert_parallel_size": 1}),
        Example(answer=Answer.NO, config=_MOE, settings={"engine.enable_expert_parallel": True}),
        Example(answer=Answer.NO, config=_MOE),
    ),
    cost="with experts on several ranks, every MoE layer moves tokens between them",
    since="0.1.0",
)
