"""Laguna: the routers' correction bias is never loaded, neither at the start nor by a refit.

What happens: every MoE layer chooses its experts with a correction bias of zero, so other experts than in training, without a
warning. A checkpoint has one tensor ``model.layers.N.mlp.experts.e_score_correction_bias`` for each such layer, and vLLM keeps
the parameter in ``RoutedExperts``. All names below ``experts.`` go to ``RoutedExperts.load_weights``, which compares them with
the names of expert weights and passes over a name that matches none.

When it can go: when vLLM loads or refuses a tensor that it does not know there; the proposal is in
``docs/upstream/laguna-router-bias.md``.
"""

from quirks_core import Affected, Patch, Quirk, Severity, model_type, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="laguna-router-bias",
    title="vLLM drops the routers' correction bias of Laguna and routes with zero, silently",
    match=model_type("laguna"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts.load_weights",
        wrapper="quirks_plugins.weight_sync.laguna_patches:wrap_load_weights",
        expects=("4c935079e68c", "f16604b8d023", "e3039228fc2d", "a7de59bf6938", "b9e4ef31237a"),
        reason="the loader passes over the tensor, and no setting names it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/50937"),
    examples=[
        yes("laguna", vllm="0.32.0", patches="RoutedExperts.load_weights"),
        yes("laguna", vllm="0.26.0", purpose="serve"),
        no("glm4_moe", vllm="0.32.0"),
        unknown("laguna", vllm="0.25.1"),
        unknown("laguna"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    from worker.lab.kit.checkpoints import build

    model = build("laguna", lab.folder / "laguna")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
