"""On vLLM's CPU platform, MoE models that choose experts by a corrected score, without groups of experts, get other experts.

What happens: ERNIE 4.5 MoE generates other tokens than transformers, without an error: on a tiny model 14 of 72 agree. Models
with sigmoid scores, such as MiniMax-M2 and Laguna, end the engine at the first request with an ``AssertionError``. vLLM's
``CPURouter`` gets the correction bias and the kind of score, but its branch for models without groups of experts takes the top
k of the softmax and knows neither (``_compute_routing`` in fused_moe/router/cpu_router.py). On GPUs they are part of the
kernel.

When it can go: when that branch applies the bias; the proposal is in ``docs/upstream/cpu-router-correction-bias.md``.
"""

from quirks_core import Affected, Patch, Quirk, Severity, model_type, no, platform, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="cpu-router-bias",
    title="vLLM's CPU platform ignores the correction bias of routers without groups (ERNIE 4.5), and knows no sigmoid there",
    match=platform("cpu") & model_type("ernie4_5_moe", "minimax_m2", "laguna"),
    affected=Affected("vllm", introduced="0.30.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.fused_moe.router.cpu_router:CPURouter._compute_routing",
        wrapper="quirks_plugins.moe_backend.cpu_router_patches:wrap_compute_routing",
        expects=("c8a7eca71b0d",),
        reason="the branch is chosen by the model's code, and no setting chooses another",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("huggingface/transformers/pull/39581"),
    examples=[
        yes("ernie4_5_moe", vllm="0.32.0", platform="cpu", patches="CPURouter._compute_routing"),
        yes("minimax_m2", vllm="0.33.0", platform="cpu", purpose="serve"),
        no("ernie4_5_moe", vllm="0.32.0", platform="cuda"),
        no("qwen3_moe", vllm="0.32.0", platform="cpu"),
        no("ernie4_5_moe", vllm="0.29.0", platform="cpu"),
        unknown("ernie4_5_moe", vllm="0.32.0"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    from worker.lab.kit.checkpoints import build

    model = build("ernie4_5_moe", lab.folder / "ernie")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
