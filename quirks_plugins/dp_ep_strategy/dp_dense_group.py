"""A dense model cannot be spread over the engines of one vLLM data-parallel group.

What happens: vLLM's external load balancing (one engine per rank) exists for models whose ranks share experts. Inside one
engine (the strategy ``engine``) data parallelism works for dense models too: vLLM runs the ranks as engine cores that share
nothing.

When it can go: when vLLM accepts dense models in such a group; the static probe will show it.
"""

from quirks_core import Kind, Quirk, Refuse, Severity, StaticProbe, no, report, unknown, yes
from quirks_plugins.conditions import actors, dense, several_replicas
from quirks_plugins.dp_ep_strategy.evidence import refused_or_started
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import QWEN3_MOE, parallel

_ACTORS = parallel(dp=2, strategy="actors")

QUIRK = Quirk(
    id="dp-dense-group",
    title="Dense models share nothing, and vLLM refuses external data parallelism for them",
    kind=Kind.RULE,
    match=several_replicas & actors & dense,
    adjustments=Refuse(
        "with external load balancing, vLLM takes only MoE models as ranks of a data-parallel group, and this one is dense",
        "set parallel.dp_strategy: independent, or leave it open",
    ),
    severity=Severity.CRASH,
    crash=r"Non-MoE models do not support external data parallel mode",
    references=report("vllm-project/vllm-ascend#11863"),
    evidence=StaticProbe("vllm.engine.arg_utils", r"Non-MoE models do not support external data parallel mode"),
    examples=[
        yes("qwen3", _ACTORS, refuses="parallel.dp_strategy: independent"),
        no(QWEN3_MOE, _ACTORS),
        no("qwen3", parallel(dp=2)),
        no("qwen3", parallel(dp=1, strategy="actors")),
        unknown("acme_moe", _ACTORS),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An actor for a dense model is refused before it starts."""
    from worker.engine.engine_rank import EngineRank

    values = {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": "actors"}}
    rank = EngineRank("actors", engines=2)
    return await refused_or_started(lab, lab.checkpoint("qwen3"), values, "a dense model as rank 0 of two", engine_rank=rank)
