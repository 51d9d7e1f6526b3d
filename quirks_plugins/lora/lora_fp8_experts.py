"""LoRA on a MoE model in FP8: from vLLM 0.20 to 0.23 the output is gibberish, also of requests without an adapter.

What happens: the engine starts, and completions are corrupted as soon as adapters are enabled. The Triton experts get
activations that were quantised for the base weights already, and LoRA's product takes these numbers for activations
(``TritonExperts.apply``). vLLM 0.24.0 keeps the unquantised ones for it (``lora_unquantized_hidden_states``).

When it can go: when vLLM 0.23 is no longer supported. Read in 0.19.1, 0.20.0, 0.23.0 and 0.24.0; not run by us. Experts with
int4 weights, and NVFP4 as Marlin computes it, have activations in 16 bits and are not concerned.
"""

from quirks_core import Affected, Quirk, Refuse, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_plugins.conditions import fp8_weights, mixture, without_fp8
from quirks_plugins.runs import QWEN3_MOE

_LORA, _H100 = {"engine.enable_lora": True}, {"platform.gpu.capability": 90}
_FP8 = {**QWEN3_MOE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
_COMPRESSED = {**QWEN3_MOE, "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}

QUIRK = Quirk(
    id="lora-fp8-experts",
    title="LoRA on a MoE model in FP8 corrupts all output, also that of requests without an adapter",
    match=setting("engine.enable_lora").is_true() & mixture & fp8_weights & ~without_fp8,
    affected=Affected("vllm", introduced="0.20.0", fixed="0.24.0"),
    adjustments=Refuse(
        "with LoRA this vLLM multiplies activations that are FP8 already, and every request of a MoE model gets gibberish",
        "install vLLM 0.24 or newer, take a base model in bfloat16, or set engine.enable_lora: false",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#42007"), report("vllm-project/vllm#42008")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.triton_moe", "lora_unquantized_hidden_states", found_means_affected=False
    ),
    examples=[
        yes(_FP8, _LORA, vllm="0.20.1", purpose="serve", platform="cuda", extra=_H100, refuses="vLLM 0.24"),
        yes(_COMPRESSED, _LORA, vllm="0.23.0", platform="cuda", extra=_H100, refuses="bfloat16"),
        no(_FP8, _LORA, vllm="0.24.0"),
        no(_FP8, _LORA, vllm="0.20.1", platform="cuda", extra={"platform.gpu.capability": 80}),
        no(_FP8, _LORA, vllm="0.19.1"),
        no(QWEN3_MOE, _LORA, vllm="0.20.1"),
        no({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, _LORA, vllm="0.20.1"),
        unknown(_FP8, _LORA),
    ],
)
