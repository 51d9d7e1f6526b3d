"""Models that keep a copy which they make of their weights once: a refit leaves it at the old values.

What happens: after a weight update one part of each layer still computes with the weights before, without an error. GLM-5.3
joins the weights of three convolutions (``_merged_conv_weight``, from vLLM 0.30.0 on) and casts the gate of its indexer
(``_wp_fp32``) in the first forward pass; vllm-project/vllm#55087 reports the former. Qwen3-Next, Qwen3.5-MoE, Qwen4-Exp and
Alice AI join the router and the gate of the shared expert (``_combined_gate_weight``) where vLLM fuses shared experts, which it
does with AITER on AMD GPUs. Muse Spark, from vLLM 0.33.0 on, casts the norm after its experts. DeepSeek-V4 sums up a matrix
(``hc_attn_fn_broadcast``) at the end of each ``load_weights``, when a layerwise reload may not have written the weights yet; up
to vLLM 0.28 it puts the sum into a new tensor, and CUDA graphs go on with the first one.

When it can go: when a layerwise reload runs a model's own hooks for loaded weights (``process_weights_after_loading``), and
these make the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from quirks_core import Advise, Affected, Patch, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import model_type, platform, purpose
from quirks_plugins.conditions import our_worker
from quirks_plugins.runs import OURS

if TYPE_CHECKING:
    import torch

_TYPES = ("deepseek_v4", "deepseek_v41", "glm5_next", "glm5_next_text", "muse_spark")
#: Only where vLLM fuses shared experts.
_WITH_AITER = ("alice_ai", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text")
_LAYERWISE = "vllm.model_executor.model_loader.reload.layerwise"
_PATCHES = "quirks_plugins.weight_sync.derived_weights_refit"
_REASON = "a reload does not know of copies that a model made of its weights"

QUIRK = Quirk(
    id="derived-weights-refit",
    title="A refit leaves copies that a model made of its weights at the old values",
    match=(model_type(*_TYPES) | (model_type(*_WITH_AITER) & platform("rocm"))) & purpose("rollout"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Patch(
            f"{_LAYERWISE}:initialize_layerwise_reload",
            wrapper=f"{_PATCHES}:wrap_initialize",
            expects=("aa5e2a00a361", "7d13b5469345", "90eb69b56a24"),
            reason=_REASON,
            when=~our_worker,
        ),
        Patch(
            f"{_LAYERWISE}:finalize_layerwise_processing",
            wrapper=f"{_PATCHES}:wrap_finalize",
            expects=("ffc2e70746d6", "432c0e8c8405", "9b7b0eb59d3f", "46740d508102"),
            reason=_REASON,
            when=~our_worker,
        ),
        Advise(
            "this model may keep copies of its weights that a refit of our worker does not reach: compare logprobs after the "
            "second refit (quirks parity)",
            when=our_worker,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm#55087"),
    evidence=StaticProbe("vllm.model_executor.layers.fused_moe.runner.moe_runner", r"if self\._combined_gate_weight is None:"),
    examples=[
        yes("deepseek_v4", vllm="0.26.0", patches=["initialize_layerwise_reload", "finalize_layerwise_processing"]),
        yes("qwen3_next", OURS, vllm="0.32.0", platform="rocm", advises="keep copies of its weights"),
        no("qwen3_next", OURS, vllm="0.32.0", platform="cuda"),
        no("glm5_next", vllm="0.32.0", purpose="serve"),
        unknown("glm5_next"),
    ],
    cost="one copy of these tensors in each refit",
)


#: A method of models that make such a copy at the end of every ``load_weights``, when a reload has not written the weights yet.
_MAKES = "finalize_mhc_broadcast_weights"
#: What it makes: a new tensor each time, up to vLLM 0.28.
_BROADCAST = "hc_attn_fn_broadcast"
_first: WeakKeyDictionary[Any, torch.Tensor] = WeakKeyDictionary()
#: The attribute of MuseSpark's runner of experts that holds what comes after them, which is no module.
_FINALIZE = "post_expert_finalize"


def wrap_initialize(original: Callable[..., None]) -> Callable[..., None]:
    """Remember the tensors that CUDA graphs read, before a model puts others in their place."""

    @wraps(original)
    def initialize_layerwise_reload(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        for module in model.modules():
            if (made := getattr(module, _BROADCAST, None)) is not None:
                _first.setdefault(module, made)
        original(model, *args, **kwargs)

    return initialize_layerwise_reload


def wrap_finalize(original: Callable[..., None]) -> Callable[..., None]:
    """Make the end of a reload write the new weights into the copies, too; their memory stays, as CUDA graphs read it."""

    @wraps(original)
    def finalize_layerwise_processing(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        import torch

        original(model, *args, **kwargs)
        with torch.inference_mode():  # a copy that was made in a forward pass takes no other writes
            for module in model.modules():
                for name, made in _MADE.items():
                    if isinstance(copy := getattr(module, name, None), torch.Tensor):
                        copy.copy_(made(module))
                if hasattr(module, _MAKES):
                    getattr(module, _MAKES)()
                _renew_norm(getattr(module, _FINALIZE, None))
            for module in model.modules():
                if (first := _first.get(module)) is not None and first is not getattr(module, _BROADCAST):
                    setattr(module, _BROADCAST, first.copy_(getattr(module, _BROADCAST)))

    return finalize_layerwise_processing


def _renew_norm(finalize: Any) -> None:
    """MuseSpark's experts keep the weight of the norm after them in the dtype of the activations."""
    import torch

    if isinstance(copy := getattr(finalize, "_fused_weight", None), torch.Tensor) and finalize._norm.has_weight:
        copy.copy_(finalize._norm.weight)


def _gates(runner: Any) -> torch.Tensor:
    import torch

    return torch.cat([runner.gate.weight, runner.shared_expert_gate.weight])


def _convolutions(attention: Any) -> torch.Tensor:
    import torch

    layers = (attention.q_conv1d, attention.k_conv1d, attention.v_conv1d)
    return torch.cat([layer.weight.view(layer.weight.size(0), layer.weight.size(2)) for layer in layers])


def _head_gate(indexer: Any) -> torch.Tensor:
    weight: torch.Tensor = indexer.wk_weights_proj.weight.data[indexer.head_dim :]
    return weight.t()


#: How vLLM makes each copy, by the attribute that holds it: None before the first forward pass.
_MADE: Mapping[str, Callable[[Any], torch.Tensor]] = {
    "_combined_gate_weight": _gates,
    "_merged_conv_weight": _convolutions,
    "_wp_fp32": _head_gate,
}
