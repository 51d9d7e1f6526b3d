"""The wrapper that ``cpu-router-bias`` puts around the router of vLLM's CPU platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Routing = Callable[..., tuple[torch.Tensor, torch.Tensor]]


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
