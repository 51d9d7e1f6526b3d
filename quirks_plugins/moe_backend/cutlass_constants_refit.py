"""FlashInfer's CUTLASS kernel for quantised experts in a rollout: each refit moves constants that CUDA graphs have captured.

What happens: after a refit, the CUDA graphs read freed memory. The constants of the kernel's activation (``gemm1_alpha``,
``gemm1_beta``, ``gemm1_clamp_limit``) and a scale (``fake_input_scale``) are plain tensors that ``FlashInferExperts`` creates
in its constructor. The code for quantised experts makes a new object at every update, but the graphs were captured with the
addresses of the old tensors. The code for unquantised experts keeps its object and is not affected. A backend that was left
open is not examined: for MXFP4, vLLM tries two other kernels before this one; for block FP8 with expert parallelism on Hopper
it tries this one first (0.33.0), and such a run is not covered, because the plan does not know whether FlashInfer is installed.

When it can go: when vLLM keeps these tensors, as vllm-project/vllm#50521 does. In its figures, a reload of gpt-oss-20b on an
H100 moved 72 of 72 of them without that change, and none with it; garbage was not shown there, nor by us.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, platform, purpose, setting
from quirks_plugins.conditions import quantized

_BACKEND = "engine.moe_backend"
_MXFP4 = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
#: Such models have a limit, which becomes one of the constants.
_limited = model_type("gpt_oss") | Fact("model.config.swiglu_limit").is_set()
_CUTLASS = {_BACKEND: "flashinfer_cutlass"}

QUIRK = Quirk(
    id="cutlass-constants-refit",
    title="A refit frees constants of FlashInfer's quantised CUTLASS experts that captured CUDA graphs still read",
    match=_limited
    & quantized
    & platform("cuda")
    & purpose("rollout")
    & setting(_BACKEND).matches("^flashinfer_cutlass")
    & ~setting("engine.enforce_eager").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),  # older releases were not examined
    adjustments=Require(
        _BACKEND,
        "triton",
        remedy="set engine.moe_backend: triton (or leave it open), or engine.enforce_eager: true",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/50521"), report("vllm-project/vllm#48312")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.flashinfer_cutlass_moe",
        r"def __init__\([^)]*\):(?:(?!\n    def )[\s\S])*self\.gemm1_alpha = ",
    ),
    examples=[
        yes(_MXFP4, _CUTLASS, vllm="0.32.0", platform="cuda", refuses=_BACKEND),
        no(_MXFP4, {**_CUTLASS, "engine.enforce_eager": True}, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, _CUTLASS, vllm="0.32.0", platform="cuda", purpose="serve"),
        no(_MXFP4, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, _CUTLASS, vllm="0.32.0", platform="cpu"),
        yes({**_MXFP4, "model_type": "acme_moe", "swiglu_limit": 7.0}, _CUTLASS, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, {**_CUTLASS, "engine.hf_overrides": {"quantization_config": {}}}, vllm="0.32.0", platform="cuda"),
        no({**_MXFP4, "model_type": "qwen3_moe"}, _CUTLASS, vllm="0.32.0", platform="cuda"),
        unknown(_MXFP4, _CUTLASS, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)
