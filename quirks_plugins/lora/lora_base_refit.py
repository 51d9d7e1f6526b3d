"""An engine with LoRA takes no weights of its base model: experts stay as they are, silently; before 0.28 the update fails.

What happens: vLLM wraps the layers of a model for LoRA, and the wrapper becomes a part of each parameter's name
(``down_proj.base_layer.weight``). From 0.28 on the wrappers pass a checkpoint's names on, but the experts of a MoE model wait
for names like ``experts.0.up_proj.base_layer.weight``, which only a PEFT model has, and pass over all others
(``RoutedExperts.get_expert_mapping``). After ``reload_weights``, a weight update, or a sleep at level 2 the model runs on its
old experts, or on what the memory holds. Before 0.28 ``load_weights`` ends with an error. So it does later for dense models
that look a name up among all their parameters (MiniCPM, dense Granite-4 and openPangu, Hunyuan in 0.28); Gemma-4 passes over
such names until 0.30.

When it can go: when vLLM loads experts by a checkpoint's names with LoRA on; 0.33.0 does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, described, fix, no, report, unknown, yes
from quirks_core.declaration.match import Fact, package, purpose, setting
from quirks_plugins.conditions import mixture
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.lora.evidence import ENGINE
from quirks_plugins.runs import LORA, QWEN3_MOE

if TYPE_CHECKING:
    import torch
    from torch import nn

_GEMMA4 = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]}

_built = Fact("model.architectures")
_looks_names_up = described(
    _built.any_in("GraniteMoeHybridForCausalLM", "MiniCPM3ForCausalLM", "MiniCPMForCausalLM", "PanguEmbeddedForCausalLM")
    | (_built.any_in("HunYuanDenseV1ForCausalLM") & package("vllm", fixed="0.29.0"))
    | (
        _built.any_in("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")
        & package("vllm", fixed="0.31.0")
    ),
    "the model looks a name up among all its parameters",
    "the model's layers load their own parameters",
)

QUIRK = Quirk(
    id="lora-base-refit",
    title="An engine with LoRA takes no experts of its base model in a weight update, silently; before 0.28 it takes nothing",
    match=purpose("rollout")
    & setting("engine.enable_lora").is_true()
    & (mixture | package("vllm", fixed="0.28.0") | _looks_names_up),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.load_lora_model",
        wrapper="quirks_plugins.lora.lora_base_refit:wrap_load_lora_model",
        expects=("5aa3629fe6ba", "c3291b829de1"),
        reason="the names that a wrapped layer is loaded by are code of vLLM, which no setting reaches",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#39934"), report("verl-project/verl/pull/7327"), fix("vllm-project/vllm/pull/39935")],
    examples=[
        yes(QWEN3_MOE, LORA, vllm="0.32.0", patches="LoRAModelRunnerMixin.load_lora_model"),
        yes("qwen3", LORA, vllm="0.27.1"),
        yes({"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"]}, LORA, vllm="0.33.0"),
        yes(_GEMMA4, LORA, vllm="0.30.0"),
        no(_GEMMA4, LORA, vllm="0.31.0"),
        no("qwen3", LORA, vllm="0.28.0"),
        no(QWEN3_MOE, vllm="0.32.0"),
        no(QWEN3_MOE, LORA, vllm="0.32.0", purpose="serve"),
        unknown(QWEN3_MOE, LORA),
    ],
    cost="13 µs for each call of load_weights with the layers of Qwen3-30B-A3B: 0.25 s for an update of one tensor per call, "
    "1 % of what vLLM's loading takes without its copies; where a call brings all tensors, 2 ms",
)


_MARK = "_model_quirks_takes_plain_names"
_WRAPPERS = "_model_quirks_lora_wrappers"
_PREFIX = "lora_base_layer_prefix"


def wrap_load_lora_model(load_lora_model: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Returns a `load_lora_model` whose model loads its base weights as it does without LoRA."""

    @functools.wraps(load_lora_model)
    def load_reloadable_model(self: Any, *args: Any, **kwargs: Any) -> nn.Module:
        model = load_lora_model(self, *args, **kwargs)
        setattr(model, _WRAPPERS, _wrappers(model))  # a trainer may load thousands of tensors one by one
        kind: Any = type(model)
        if not hasattr(kind.load_weights, _MARK):
            kind.load_weights = _taking_plain_names(kind.load_weights)
        if (load := vars(model).get("load_weights")) is not None:  # another patch has put it onto this model
            model.load_weights = MethodType(_taking_plain_names(lambda _, *args, **kwargs: load(*args, **kwargs)), model)
        return model

    return load_reloadable_model


def _taking_plain_names(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_weights(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        if _WRAPPERS not in vars(model):  # of an engine without LoRA
            return load(model, weights, *args, **kwargs)
        with _without_wrappers(*vars(model)[_WRAPPERS]):
            return load(model, ((name.replace(".base_layer.", "."), tensor) for name, tensor in weights), *args, **kwargs)

    setattr(load_weights, _MARK, True)
    return load_weights


def _wrappers(model: nn.Module) -> tuple[list[tuple[Any, str, Any, Any]], list[tuple[dict[str, Any], str]]]:
    """Finds LoRA's wrappers and their layers, by their place, and the prefixes of experts."""
    from vllm.lora.layers import BaseLayerWithLoRA

    layers = list(model.modules())
    wrapped = [
        (parent._modules, name, child, child.base_layer)
        for parent in layers
        for name, child in parent.named_children()
        if isinstance(child, BaseLayerWithLoRA)
    ]
    return wrapped, [(vars(layer), prefix) for layer in layers if (prefix := vars(layer).get(_PREFIX))]


@contextmanager
def _without_wrappers(wrapped: list[tuple[Any, str, Any, Any]], experts: list[tuple[dict[str, Any], str]]) -> Iterator[None]:
    """Puts the layers themselves in the place of LoRA's wrappers around them."""
    try:
        for place, name, _, layer in wrapped:
            place[name] = layer
        for attributes, _ in experts:
            attributes[_PREFIX] = ""
        yield
    finally:
        for place, name, wrapper, _ in wrapped:
            place[name] = wrapper
        for attributes, prefix in experts:
            attributes[_PREFIX] = prefix


async def scenario(lab: Lab) -> Outcome:
    """After an update of the base model, an engine with LoRA holds all of the trainer's weights."""
    from vllm.lora.layers import BaseLayerWithLoRA

    from worker.errors import RefitError

    # Wrappers that pass names on leave out experts alone; before that no model is loaded, and experts have no kernel for LoRA.
    kind = "qwen3_moe" if hasattr(BaseLayerWithLoRA, "load_weights") else "qwen3"
    trainer = lab.trainer(lab.checkpoint(kind, seed=1))
    async with lab.worker(lab.checkpoint(kind), ENGINE) as worker:
        try:
            await worker.refit_async(trainer)
        except RefitError as error:
            return Outcome(False, "tensors that differ after the update", str(error), "none")
        differing = await worker.verify_refit_async(trainer)
    return Outcome(not differing, "tensors that differ after the update", ", ".join(differing) or "none", "none")
