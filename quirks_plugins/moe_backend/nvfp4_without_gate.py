"""Nemotron-H with NVFP4 experts on data-centre Blackwell (B200): fluent answers that are wrong.

What happens: greedy answers are grammatical and false, and evaluations fall, without a message. For NVFP4 experts on compute
capability 10.x vLLM takes FlashInfer's TRT-LLM kernel that also routes. It says that it computes experts without a gate
(``_supports_no_act_and_mul``), and their output is wrong. The same checkpoint is right with ``flashinfer_cutlass`` on the same
GPU, and on capability 12.0, where vLLM takes that by itself.

When it can go: when vLLM no longer gives such experts to that kernel; vllm-project/vllm#52316, which did so, was closed. The
report is of 0.26.0 and 0.27.0; the class says the same in 0.28.0, 0.31.0 and 0.33.0. No Blackwell was at hand.
"""

from quirks_core import Affected, Default, Fact, Quirk, Severity, StaticProbe, described, model_type, no, report, unknown, yes
from quirks_plugins.conditions import nemotron_h_experts

_BACKEND, _CAPABILITY = "engine.moe_backend", "platform.gpu.capability"
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

QUIRK = Quirk(
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
