"""Kernels of experts that return something else than the experts, one row each.

What happens: answers are noise, fluent and false, or depend on their batch; nothing fails.

``gptoss-hopper-flashinfer``: the variable, which recipes set for speed, selects FlashInfer's CUTLASS kernel for MXFP4 weights
with bfloat16 activations, and that of FlashInfer 0.6.11 computes wrong on capability 9.0.

``nvfp4-without-gate``: for NVFP4 experts on capability 10.x vLLM takes FlashInfer's TRT-LLM kernel that also routes. It says
that it computes experts without a gate (``_supports_no_act_and_mul``), and their output is wrong.

``batch-invariant-fp8``: experts of ``quantization: fp8`` get one scale for the activations of the whole batch, the largest of
all requests (``Fp8PerTensorOnlineMoEMethod``), and greedy tokens differ within the first ten positions; linear layers have one
for each token. Our parity profile sets the variable, and does not quantise.

When it can go: with vLLM 0.23 and 0.32, and when vLLM no longer gives experts without a gate to that kernel.

Evidence: the reports (builds between 0.20 and 0.21 with FlashInfer 0.6.11; 0.26.0 and 0.27.0; 0.27.1 on an RTX 4090 and an
H100), and the sources at the ends of each range; not run by us.
"""

from quirks_core import Advise, Affected, Default, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, described, environment, model_type, setting
from quirks_plugins.conditions import mixture, nemotron_h_experts
from quirks_plugins.runs import QWEN3_MOE

_VARIABLE = "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16"
_CAPABILITY = "platform.gpu.capability"
_ON, _H100 = {_VARIABLE: "1"}, {_CAPABILITY: 90}

GPTOSS_HOPPER_FLASHINFER = Quirk(
    id="gptoss-hopper-flashinfer",
    title="FlashInfer's MXFP4 kernel for gpt-oss computes wrong on Hopper",
    match=model_type("gpt_oss") & environment(_VARIABLE).one_of("1") & Fact(_CAPABILITY).one_of(90),
    affected=Affected("vllm", introduced="0.21.0", fixed="0.24.0"),
    adjustments=Advise(f"the kernel that {_VARIABLE}=1 selects returns noise for gpt-oss on this GPU: unset {_VARIABLE}"),
    severity=Severity.WRONG_OUTPUT,
    references=report("flashinfer-ai/flashinfer#3334"),
    examples=[
        yes("gpt_oss", vllm="0.22.0", env=_ON, platform="cuda", extra=_H100, advises=_VARIABLE),
        yes("gpt_oss", vllm="0.23.0", env=_ON, platform="cuda", extra=_H100, purpose="serve"),
        no("gpt_oss", vllm="0.22.0", env=_ON, platform="cuda", extra={_CAPABILITY: 100}),
        no("gpt_oss", vllm="0.22.0", env={_VARIABLE: "0"}, platform="cuda", extra=_H100),
        no("gpt_oss", vllm="0.24.0", env=_ON, platform="cuda", extra=_H100),
        no("qwen3_moe", vllm="0.22.0", env=_ON, platform="cuda", extra=_H100),
        unknown("gpt_oss", env=_ON, platform="cuda", extra=_H100),
    ],
)

_BACKEND = "engine.moe_backend"
_B200 = {_CAPABILITY: 100}
_NANO = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEM*EME",
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
_nvfp4 = described(
    Fact("model.quantization.quant_algo").matches("NVFP4|MIXED")
    | Fact("model.quantization.format").one_of("nvfp4-pack-quantized", "mixed-precision"),
    "weights of the checkpoint are NVFP4",
    "no weights of the checkpoint are NVFP4",
)

NVFP4_WITHOUT_GATE = Quirk(
    id="nvfp4-without-gate",
    title="NVFP4 experts without a gate (Nemotron-H) compute wrong on Blackwell",
    match=model_type("nemotron_h") & nemotron_h_experts & _nvfp4 & Fact(_CAPABILITY).one_of(100, 103),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Default(
        _BACKEND,
        "flashinfer_cutlass",
        reason="the kernel that vLLM prefers here returns wrong values for experts without a gate",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#52308"), report("vllm-project/vllm/pull/52316")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.trtllm_nvfp4_moe",
        r"def _supports_no_act_and_mul\(\) -> bool:[^\n]*\n[^\n]*\n\s+return True",
    ),
    examples=[
        yes(_NANO, vllm="0.27.0", platform="cuda", extra=_B200, gives={_BACKEND: "flashinfer_cutlass"}),
        yes(_NANO, {_BACKEND: "flashinfer_trtllm"}, vllm="0.33.0", platform="cuda", extra=_B200, gives={}),
        no(_NANO, vllm="0.27.0", platform="cuda", extra={_CAPABILITY: 120}),
        no({**_NANO, "hybrid_override_pattern": "M-M*-"}, vllm="0.27.0", platform="cuda", extra=_B200),
        no({"model_type": "nemotron_h", "hybrid_override_pattern": "MEM*"}, vllm="0.27.0", platform="cuda", extra=_B200),
        unknown(_NANO, platform="cuda", extra=_B200),
    ],
)

_INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}
_FP8 = {"engine.quantization": "fp8"}

BATCH_INVARIANT_FP8 = Quirk(
    id="batch-invariant-fp8",
    title="Batch-invariant mode does not hold for experts that vLLM quantises to FP8",
    match=environment("VLLM_BATCH_INVARIANT").one_of("1")
    & mixture
    & setting("engine.quantization").matches("^fp8(_per_tensor)?$"),
    affected=Affected("vllm", introduced="0.26.0", fixed="0.33.0"),
    adjustments=Advise(
        "VLLM_BATCH_INVARIANT=1 does not hold for FP8 experts of this vLLM, whose activations share one scale over the "
        "batch: leave engine.quantization open, or install vLLM 0.33 or newer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#57016"), report("vllm-project/vllm/pull/57092")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.quantization.online.fp8",
        r"kFp8DynamicTokenSym if envs\.VLLM_BATCH_INVARIANT",
        found_means_affected=False,
    ),
    examples=[
        yes(QWEN3_MOE, _FP8, env=_INVARIANT, vllm="0.32.0", advises="0.33"),
        no(QWEN3_MOE, _FP8, env=_INVARIANT, vllm="0.33.0"),
        no(QWEN3_MOE, _FP8, vllm="0.32.0"),
        no(QWEN3_MOE, env=_INVARIANT, vllm="0.32.0"),
        unknown(QWEN3_MOE, _FP8, env=_INVARIANT),
    ],
)
