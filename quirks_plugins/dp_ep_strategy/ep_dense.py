"""Expert parallelism for a dense model: the engine does not start.

What happens: vLLM raises a ``ValueError`` in the process that starts the engine.

When it can go: when vLLM ignores the flag on dense models; the paired run will show it.
"""

from quirks_core import Kind, Quirk, Refuse, Severity, StaticProbe, no, report, unknown, yes
from quirks_plugins.conditions import dense, sharded_experts
from quirks_plugins.dp_ep_strategy.evidence import refused_or_started
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import QWEN3_MOE, parallel

QUIRK = Quirk(
    id="ep-dense",
    title="A dense model has no experts to share, and vLLM refuses to start",
    kind=Kind.RULE,
    match=sharded_experts & dense,
    adjustments=Refuse(
        "expert parallelism was asked for, and the model is dense: it has no experts",
        "set engine.enable_expert_parallel: false and drop parallel.expert_parallel_size",
    ),
    severity=Severity.CRASH,
    crash=r"Number of experts in the model must be greater than 0",
    references=report("vllm-project/vllm/pull/12583"),
    evidence=StaticProbe("vllm.config.model", r"Number of experts in the model must be greater than 0"),
    examples=[
        yes("qwen3", parallel(flag=True), refuses="engine.enable_expert_parallel: false"),
        yes("gemma3", parallel(ep=2)),
        no(QWEN3_MOE, parallel(flag=True)),
        no("qwen3", parallel(dp=2)),
        unknown("acme_moe", parallel(flag=True)),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine for a dense model with expert parallelism is refused before it starts."""
    values = {"engine": {"enable_expert_parallel": True}}
    return await refused_or_started(lab, lab.checkpoint("qwen3"), values, "a dense model with expert parallelism")
