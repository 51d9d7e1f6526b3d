"""Step-3, Step-3.5 and LongCat-Flash-Lite: a refit leaves some of their weights at their old values.

What happens: after a weight update the policy is a mixture of two, and nothing fails. In Step-3 and Step-3.5 the projections to
queries, keys and values keep the values that the engine started with, in LongCat-Flash-Lite the n-gram embeddings and their
projections. These models copy a checkpoint's tensors into slices of larger parameters themselves (``param_slice.copy_`` in
``load_weights``) instead of calling ``param.weight_loader``, and a layerwise reload repeats only calls of weight loaders. For
Step-3 vLLM logs a warning: "ReplicatedLinear: Failed to load weights".

When it can go: when vLLM loads these tensors through their loaders. The paired run uses Step-3. For LongCat-Flash-Lite only the
embedding was reloaded, by itself; for Step-3.5 only the source was read.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from quirks_core import Affected, Fact, Patch, Quirk, Severity, StaticProbe, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import quantized
from quirks_plugins.kit import Lab, Outcome

_WRAPPER = "quirks_plugins.weight_sync.direct_write_patches:wrap_slice_load"
_REASON = "it copies into slices of parameters, and a layerwise reload repeats only what goes through their weight loaders"
_step3 = model_type("step3_text", "step3_vl")
_step3p5 = model_type("step3p5", "step3p7")
#: LongCat-Flash-Lite, and not LongCat-Flash, whose model type it may share.
_LITE = {"model_type": "longcat_flash", "ngram_vocab_size_ratio": 4}
_longcat = Fact("model.config.ngram_vocab_size_ratio").is_set()

QUIRK = Quirk(
    id="fused-slice-refit",
    title="A refit leaves weights that Step-3 and LongCat-Flash-Lite copy into slices at their old values",
    match=(_step3 | _step3p5 | _longcat) & purpose("rollout") & ~quantized,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=[
        Patch(
            "vllm.model_executor.models.step3_text:Step3TextModel.load_weights",
            wrapper=_WRAPPER,
            expects=("75f8c54c1dac", "93eb444a93bb"),
            reason=_REASON,
            when=_step3,
        ),
        Patch(
            "vllm.model_executor.models.step3p5:Step3p5Model.load_weights",
            wrapper=_WRAPPER,
            expects=("d3dc6dc38997", "2b1b58ea94e2"),
            reason=_REASON,
            when=_step3p5,
        ),
        Patch(
            "vllm.model_executor.models.longcat_flash_ngram:FlashNgramModel.load_weights",
            wrapper=_WRAPPER,
            expects=("030a403059c9",),
            reason=_REASON,
            when=_longcat,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/57795"),
    evidence=StaticProbe("vllm.model_executor.models.step3_text", r"param_slice\.copy_\("),
    examples=[
        yes("step3_vl", vllm="0.32.0", patches="Step3TextModel.load_weights"),
        yes("step3p5", vllm="0.33.0", patches="Step3p5Model.load_weights"),
        yes(_LITE, vllm="0.32.0", patches="FlashNgramModel.load_weights"),
        no("longcat_flash", vllm="0.32.0"),
        no({"model_type": "step3_text", "quantization_config": {"quant_method": "fp8"}}, vllm="0.32.0"),
        no("step3_text", vllm="0.15.1"),
        no("step3_text", vllm="0.32.0", purpose="serve"),
        unknown("step3_text"),
    ],
    cost="microseconds per tensor in each refit",
)

#: A model of two dense layers; the layer with experts does not exist.
_CONFIG: dict[str, Any] = {
    "architectures": ["Step3TextForCausalLM"],
    "model_type": "step3_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "share_q_dim": 64,
    "head_dim": 32,
    "moe_layers_enum": "99",
    "max_position_embedding": 1024,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_LAYER = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "self_attn.inter_norm": (64,),
    "self_attn.wq": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
    "input_layernorm": (64,),
    "post_attention_layernorm": (64,),
}


async def scenario(lab: Lab) -> Outcome:
    """An engine that reloaded a second checkpoint generates what one does that started from it.

    Through ``reload_weights``, vLLM's own call: transformers has no such model that a trainer could send.
    """
    first, second = (_checkpoint(lab, seed) for seed in (0, 1))
    from_checkpoint = {"engine": {"load_format": "auto"}}
    async with lab.worker(first, from_checkpoint) as worker:
        await lab.engine(worker).collective_rpc("reload_weights", kwargs={"weights_path": str(second)})
        got = await lab.greedy(worker)
    async with lab.worker(second, from_checkpoint) as worker:
        expected = await lab.greedy(worker)
    return lab.same_tokens(got, expected, "greedy tokens equal to those of an engine that started from the same weights")


def _checkpoint(lab: Lab, seed: int) -> Path:
    import torch
    from safetensors.torch import save_file

    folder = lab.folder / f"step3-{seed}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    for file in lab.checkpoint("qwen3").glob("tokenizer*"):
        shutil.copy(file, folder)
    generator = torch.Generator().manual_seed(seed)
    shapes = {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in _LAYER.items()}
    shapes |= {"model.embed_tokens": (512, 64), "model.norm": (64,), "lm_head": (512, 64)}
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        weights[f"{name}.weight"] = 1 + 0.1 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5
    weights["lm_head.weight"] *= 4  # so that greedy decoding does not hang on rounding
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
