"""The released gpt-oss has MXFP4 experts, and trainers send bfloat16.

What happens: the first refit fails, because a tensor of another size is copied (seen in vllm-project/vllm#25694). vLLM builds
the engine as ``config.json`` declares, with experts in packed MXFP4, and a trainer sends bfloat16 under the same names. With
``hf_overrides: {quantization_config: {}}`` vLLM builds bfloat16 experts; such an engine cannot read the released checkpoint and
so starts from dummy weights, as NeMo RL has it. A trainer that packs MXFP4 itself can ignore the note.

Evidence: ``GptOssModel._load_weights_mxfp4`` and ``RoutedExperts.weight_loader`` were read in vLLM 0.26.0, 0.29.0 and 0.33.0;
there is no paired run, because vLLM's CPU platform has no MXFP4 experts.
"""

from typing import Any

from quirks_core import Advise, Affected, Fact, Kind, Quirk, Severity, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import quantized

_MXFP4 = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
_CLEARED: dict[str, Any] = {"engine.hf_overrides": {"quantization_config": {}}}

QUIRK = Quirk(
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
        no("gpt_oss", vllm="0.32.0"),
        no(_MXFP4, vllm="0.32.0", purpose="serve"),
        no({"model_type": "gpt_oss", "quantization_config": {"quant_method": "quark"}}, vllm="0.32.0"),
        unknown(_MXFP4),
    ],
)
