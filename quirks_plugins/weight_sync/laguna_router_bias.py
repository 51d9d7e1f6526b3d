"""Laguna: the routers' correction bias is never loaded, neither at the start nor by a refit.

What happens: every MoE layer chooses its experts with a correction bias of zero, so other experts than in training, without a
warning. A checkpoint has one tensor ``model.layers.N.mlp.experts.e_score_correction_bias`` for each such layer, and vLLM keeps
the parameter in ``RoutedExperts``. All names below ``experts.`` go to ``RoutedExperts.load_weights``, which compares them with
the names of expert weights and passes over a name that matches none.

When it can go: when vLLM loads or refuses a tensor that it does not know there; the proposal is in
``docs/upstream/laguna-router-bias.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, model_type, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch

    Weights = Iterable[tuple[str, torch.Tensor]]

QUIRK = Quirk(
    id="laguna-router-bias",
    title="vLLM drops the routers' correction bias of Laguna and routes with zero, silently",
    match=model_type("laguna"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts.load_weights",
        wrapper="quirks_plugins.weight_sync.laguna_router_bias:wrap_load_weights",
        expects=("4c935079e68c", "f16604b8d023", "e3039228fc2d", "a7de59bf6938", "b9e4ef31237a"),
        reason="the loader passes over the tensor, and no setting names it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/50937"),
    examples=[
        yes("laguna", vllm="0.32.0", patches="RoutedExperts.load_weights"),
        yes("laguna", vllm="0.26.0", purpose="serve"),
        no("glm4_moe", vllm="0.32.0"),
        unknown("laguna"),
    ],
)

_NAME = "e_score_correction_bias"


def wrap_load_weights(load: Callable[[Any, Weights], Iterable[str]]) -> Callable[[Any, Weights], Iterable[str]]:
    """Returns a `RoutedExperts.load_weights` that loads the correction bias as well."""

    def load_with_bias(self: Any, weights: Weights) -> Iterator[str]:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        loaded = []

        def without_bias() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                if name == _NAME and getattr(self, _NAME, None) is not None:
                    parameter = getattr(self, _NAME)
                    getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
                    loaded.append(name)
                else:
                    yield name, tensor

        yield from load(self, without_bias())
        yield from loaded

    return load_with_bias


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    from worker.lab.kit.checkpoints import build

    model = build("laguna", lab.folder / "laguna")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
