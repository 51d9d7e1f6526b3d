"""A dense model cannot be spread over engines of one vLLM data-parallel group.

What happens: external load balancing, one engine per rank, exists for what the ranks of a MoE model share. For a dense model
vLLM raises ``ValueError: Non-MoE models do not support external data parallel mode`` in every engine. Inside one engine
(``engine``) data parallelism works for dense models too: vLLM runs the ranks as engine cores that share nothing.

What this changes: ``parallel.dp_strategy: actors`` typed for a dense model is refused before any actor is started.

When it can go: when vLLM takes dense models there; the static probe will say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Answer, Example, ModelFlag, PairedRun, Quirk, Refuse, Severity, StaticProbe, report
from quirks_plugins.dp_ep_strategy.conditions import actors, dense, several_replicas

if TYPE_CHECKING:
    from quirks_core.testing.lab import Lab, Outcome

_ACTORS = {"engine.data_parallel_size": 2, "parallel.dp_strategy": "actors"}

QUIRK = Quirk(
    id="dp-dense-group",
    title="Dense models share nothing, and vLLM refuses external data parallelism for them",
    flag=ModelFlag.DP_EP_STRATEGY,
    match=several_replicas & actors & dense,
    adjustments=(
        Refuse(
            "with external load balancing, vLLM takes only MoE models as ranks of a data-parallel group, and this one is dense",
            "set parallel.dp_strategy: independent, or leave it open",
        ),
    ),
    severity=Severity.CRASH,
    references=(report("https://github.com/vllm-project/vllm-ascend/issues/11863"),),
    evidence=(
        StaticProbe("vllm.engine.arg_utils", r"Non-MoE models do not support external data parallel mode", True),
        PairedRun("quirks_plugins.dp_ep_strategy.dp_dense_group:scenario", "live on vLLM 0.32.0"),
    ),
    examples=(
        Example(answer=Answer.YES, config={"model_type": "qwen3"}, settings=_ACTORS),
        Example(answer=Answer.NO, config={"model_type": "qwen3_moe", "num_experts": 8}, settings=_ACTORS),
        Example(
            answer=Answer.NO,
            config={"model_type": "qwen3"},
            settings={"engine.data_parallel_size": 2, "parallel.dp_strategy": "independent"},
        ),
        Example(answer=Answer.NO, config={"model_type": "qwen3"}, settings={"engine.data_parallel_size": 2}),
        Example(
            answer=Answer.NO,
            config={"model_type": "qwen3"},
            settings={"engine.data_parallel_size": 1, "parallel.dp_strategy": "actors"},
        ),
        Example(answer=Answer.UNKNOWN, settings=_ACTORS),
        Example(answer=Answer.UNKNOWN, config={"model_type": "acme_moe"}, settings=_ACTORS),
    ),
    since="0.1.0",
)


async def scenario(lab: Lab) -> Outcome:
    """Actors for a dense model are refused; else one of them is started as its group would."""
    from quirks_core.testing.lab import Outcome
    from quirks_plugins.dp_ep_strategy.evidence import EXPECTED, refused_or_started

    model, measure = lab.checkpoint("qwen3"), "a dense model as rank 0 of a data-parallel group"
    plan = lab.plan(model, {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": "actors"}})
    if plan.refusals:
        return Outcome(True, measure, f"refused: {plan.refusals[0].reason}", EXPECTED)
    values = {"engine": {"data_parallel_size": 2, "vllm_kwargs": {"data_parallel_rank": 0}}}
    return await refused_or_started(lab, model, values, measure)
