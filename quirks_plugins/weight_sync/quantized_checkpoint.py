"""An engine of a quantised checkpoint, and a trainer that sends bfloat16 under the same names: one row for each way it fails.

What happens: vLLM builds the layers as the checkpoint states. Those of DeepSeek-V3, MiniMax-M2 or Mistral Medium 3.5 have eight
bits and scales: loading copies a bfloat16 tensor of the same shape into such a weight without a word, and after the first refit
the policy generates garbage or NaN. The scales, which the refit lacks, belong to other weights; after a layerwise reload they
are uninitialised (vllm-project/vllm#45835 saw NaN), or zero with ``partial-module-refit``. The released gpt-oss has packed
MXFP4 experts, of another size, and the refit fails (seen in vllm-project/vllm#25694).

With ``hf_overrides: {quantization_config: {}}`` vLLM builds bfloat16 layers; such an engine cannot read the files and so starts
from dummy weights, as NeMo RL has it. A trainer that sends weights as the checkpoint has them, or updates LoRA adapters alone,
can ignore the notes.

When it can go: when vLLM refuses a weight of another dtype, or quantises it.

Evidence: ``BasevLLMParameter``, ``RoutedExperts.weight_loader``, ``ModelConfig._verify_quantization`` and
``GptOssModel._load_weights_mxfp4`` were read in vLLM 0.26.0 and 0.33.0. No refit of such a checkpoint was run; vLLM's CPU
platform has no MXFP4 experts.
"""

from typing import Any

from quirks_core import Advise, Affected, Fact, Kind, Quirk, Severity, described, no, report, unknown, yes
from quirks_core.declaration.match import model_type, purpose, setting
from quirks_plugins.conditions import quantized

_FP8 = {"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
_MXFP4 = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
_COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
_MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
_stated = "model.quantization"
_eight_bits = described(
    Fact(f"{_stated}.quant_method").one_of("fp8", "fbgemm_fp8")
    | Fact(f"{_stated}.format").matches("^((int|float|naive|mxfp8)-quantized|mixed-precision)$")
    | Fact(f"{_stated}.quant_algo").matches("^(MX)?FP8|^MIXED")
    | Fact(f"{_stated}.global_quant_config.weight.dtype").matches("^(fp|int)8"),
    "weights of the checkpoint have eight bits",
    "the checkpoint has no weights of eight bits",
)
_CLEARED: dict[str, Any] = {"engine.hf_overrides": {"quantization_config": {}}}

FP8_CHECKPOINT_REFIT = Quirk(
    id="fp8-checkpoint-refit",
    title="An engine of an FP8 or INT8 checkpoint takes bfloat16 weights of a refit without scales, silently",
    kind=Kind.RULE,
    match=(purpose("rollout") & quantized & _eight_bits & ~setting("engine.enable_lora").is_true()),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        "the checkpoint is FP8 or INT8, and a refit in bfloat16 has no scales: send such weights with scales, or set "
        "engine.hf_overrides.quantization_config: {} and engine.load_format: dummy"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/45835"), report("NVIDIA-NeMo/RL/pull/2875")],
    examples=[
        yes(_FP8, vllm="0.32.0", advises="engine.hf_overrides.quantization_config"),
        yes({"model_type": "gemma4", "text_config": {"quantization_config": _COMPRESSED}}, vllm="0.32.0"),
        yes({"model_type": "llama", "quantization_config": _MODELOPT}, vllm="0.32.0"),
        no({"model_type": "llama", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, vllm="0.32.0"),
        no({"model_type": "qwen3", "quantization_config": {**_COMPRESSED, "format": "pack-quantized"}}, vllm="0.32.0"),
        no(_FP8, _CLEARED, vllm="0.32.0"),
        no(_FP8, {"engine.enable_lora": True}, vllm="0.32.0"),
        no(_FP8, vllm="0.32.0", purpose="serve"),
        unknown(_FP8),
    ],
)

GPTOSS_MXFP4_REFIT = Quirk(
    id="gptoss-mxfp4-refit",
    title="gpt-oss starts with MXFP4 experts, and a refit in bfloat16 does not fit them",
    kind=Kind.RULE,
    match=(model_type("gpt_oss") & purpose("rollout") & quantized & Fact("model.quantization.quant_method").one_of("mxfp4")),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        "experts are MXFP4, and a refit in bfloat16 fails: set engine.hf_overrides.quantization_config: {} and "
        "engine.load_format: dummy"
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm/pull/25694"), report("NVIDIA-NeMo/RL/pull/1452")],
    examples=[
        yes(_MXFP4, vllm="0.32.0", advises="engine.hf_overrides.quantization_config"),
        no(_MXFP4, _CLEARED, vllm="0.32.0"),
        no(_MXFP4, vllm="0.32.0", purpose="serve"),
        no({"model_type": "gpt_oss", "quantization_config": {"quant_method": "quark"}}, vllm="0.32.0"),
        unknown(_MXFP4),
    ],
)
