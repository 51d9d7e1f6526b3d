"""On vLLM's CPU platform, MoE models that choose experts by a corrected score, without groups of experts, get other experts.

What happens: ERNIE 4.5 MoE generates other tokens than transformers, without an error: on a tiny model 14 of 72 agree. Models
with sigmoid scores, such as MiniMax-M2 and Laguna, end the engine at the first request with an ``AssertionError``. vLLM's
``CPURouter`` gets the correction bias and the kind of score, but its branch for models without groups of experts takes the top
k of the softmax and knows neither (``_compute_routing`` in fused_moe/router/cpu_router.py). On GPUs they are part of the
kernel.

When it can go: when that branch applies the bias; the proposal is in ``docs/upstream/cpu-router-correction-bias.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, model_type, no, platform, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch

    Routing = Callable[..., tuple[torch.Tensor, torch.Tensor]]

QUIRK = Quirk(
    id="cpu-router-bias",
    title="vLLM's CPU platform ignores the correction bias of routers without groups (ERNIE 4.5), and knows no sigmoid there",
    match=platform("cpu") & model_type("ernie4_5_moe", "minimax_m2", "laguna"),
    affected=Affected("vllm", introduced="0.30.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.fused_moe.router.cpu_router:CPURouter._compute_routing",
        wrapper="quirks_plugins.moe_backend.cpu_router_bias:wrap_compute_routing",
        expects=("c8a7eca71b0d",),
        reason="the branch is chosen by the model's code, and no setting chooses another",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("huggingface/transformers/pull/39581"),
    examples=[
        yes("ernie4_5_moe", vllm="0.32.0", platform="cpu", patches="CPURouter._compute_routing"),
        yes("minimax_m2", vllm="0.33.0", platform="cpu", purpose="serve"),
        no("ernie4_5_moe", vllm="0.32.0", platform="cuda"),
        no("ernie4_5_moe", vllm="0.29.0", platform="cpu"),
        unknown("ernie4_5_moe", vllm="0.32.0"),
    ],
)


def wrap_compute_routing(compute: Routing) -> Routing:
    """Returns a `CPURouter._compute_routing` that applies scores and bias to models without groups of experts, too."""

    def compute_in_one_group(
        self: Any, hidden_states: torch.Tensor, router_logits: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plain = self.scoring_func == "softmax" and self.e_score_correction_bias is None
        if self.use_grouped_topk or plain or self.custom_routing_function or self.scoring_func not in ("softmax", "sigmoid"):
            return compute(self, hidden_states, router_logits, *args, **kwargs)
        from vllm.model_executor.layers.fused_moe.router.cpu_router import _grouped_topk

        weights, ids = _grouped_topk(
            router_logits,
            self.top_k,
            self.renormalize,
            1,
            1,
            self.scoring_func,
            self.routed_scaling_factor,
            self.e_score_correction_bias,
        )
        return weights, ids

    return compute_in_one_group


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    from worker.lab.kit.checkpoints import build

    model = build("ernie4_5_moe", lab.folder / "ernie")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
