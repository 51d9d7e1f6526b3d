"""DeepSeek, Mixtral, LFM2-MoE and others: a trainer sends the experts of a layer in one tensor, and vLLM wants one for each.

What happens: with LFM2-MoE a weight update leaves all experts at their old values, silently, from vLLM 0.26 on. With the other
models, and before, it ends with an error, such as ``KeyError: 'layers.1.mlp.experts.gate_up_proj'`` for DeepSeek-V3.
transformers 5 holds the experts of a layer in two tensors, ``experts.gate_up_proj`` and ``experts.down_proj``, gives some
modules other names than checkpoints do, and turns that back when it saves one. A trainer that sends ``named_parameters()``, as
TRL does, sends what transformers holds. vLLM takes that for the models that load experts by ``RoutedExperts.load_weights``
(vllm-project/vllm#36997), such as Qwen3-MoE, GLM-4.5 and OLMoE. The models of this quirk have a loop over single experts, as
DeepSeek has, or other names.

When it can go: when vLLM's loaders of these models take what transformers holds. In vLLM 0.32.0 the parameters of a tiny model
of each type were loaded; DeepSeek-V3.2 and GLM-5 do not run on a CPU and were only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch

#: A loop over single experts.
_LOOPS = ("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "hy_v3")
#: Other names for the experts, their block, the router or the shared expert.
_NAMES = ("ernie4_5_moe", "granitemoehybrid", "laguna", "lfm2_moe", "minimax_m2", "mixtral")

QUIRK = Quirk(
    id="fused-experts-refit",
    title="A refit with all experts of a layer in one tensor, as transformers 5 holds them, fails, or leaves them silently",
    match=purpose("rollout") & ~our_worker & model_type(*_LOOPS, *_NAMES),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
        wrapper="quirks_plugins.weight_sync.fused_experts_refit:wrap_load_model",
        expects=("5c00f43731f8", "b95fd04df01f", "ee1975c78da7", "939e4d07443b", "8579297b4f00", "39c27f400e70"),
        reason="the loaders of these models know the names and the layout of a checkpoint alone",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/36997"),
    examples=[
        yes("deepseek_v3", vllm="0.33.0", patches="BaseModelLoader.load_model"),
        no("deepseek_v3", {"engine.generate_from_dummy": False}, vllm="0.32.0"),
        no("deepseek_v3", vllm="0.32.0", purpose="serve"),
        unknown("deepseek_v3"),
    ],
    cost="in each refit, one copy of a layer's fused experts at a time; for a checkpoint's names 0.2 to 1.6 µs per tensor: "
    "7 ms for DeepSeek-V3, 0.3 % of what vLLM's loading takes without its copies",
)


def wrap_load_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a model's ``load_weights`` take tensors as transformers holds them, too."""

    @wraps(original)
    def load_model(*args: Any, **kwargs: Any) -> torch.nn.Module:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        model: Any = original(*args, **kwargs)
        conversions = get_checkpoint_conversion_mapping(getattr(getattr(model, "config", None), "model_type", None))
        if conversions is not None:  # a draft may have none
            load = model.load_weights
            # All that transformers asks of a model here.
            held = SimpleNamespace(config=model.config, _weight_conversions=conversions)
            patterns = [conversion.reverse_transform().compiled_sources.pattern for conversion in conversions]
            of_transformers = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join(patterns)))  # all have a group of the same name

            @wraps(load)
            def load_weights(weights: Iterable[tuple[str, torch.Tensor]], *given: Any, **named: Any) -> Any:
                return load(_as_in_checkpoint(weights, held, of_transformers), *given, **named)

            model.load_weights = load_weights
        return model

    return load_model


def _as_in_checkpoint(
    weights: Iterable[tuple[str, torch.Tensor]], held: Any, of_transformers: re.Pattern[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields tensors as a checkpoint holds them, one by one; transformers compiles its table anew for each that it converts."""
    from transformers.core_model_loading import revert_weight_conversion

    for name, tensor in weights:
        if of_transformers.search(name):
            yield from revert_weight_conversion(held, {name: tensor}).items()
        else:
            yield name, tensor


async def scenario(lab: Lab) -> Outcome:
    """An engine that got other experts from a trainer, one tensor after the other as TRL sends them, generates with these."""
    import torch

    from worker.lab.kit.checkpoints import build

    model = build("lfm2_moe", lab.folder / "lfm2_moe")
    trainer = lab.trainer(model)
    with torch.no_grad():
        for name, parameter in trainer.named_parameters():
            if ".experts." in name:
                parameter.neg_()
    expected = lab.reference(trainer)
    with lab.llm(model) as llm:
        running = llm.llm_engine.model_executor.driver_worker.model_runner.model
        try:
            for name, parameter in trainer.named_parameters():
                running.load_weights([(name, parameter.data)])
        except KeyError as error:  # before vLLM 0.26
            return Outcome(False, "an update with the experts of a layer in one tensor", f"KeyError: {error}", "taken")
        llm.reset_prefix_cache()
        return lab.same_tokens(lab.greedy_of(llm), expected)
