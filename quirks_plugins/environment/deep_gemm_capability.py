"""DeepGEMM on GPUs of compute capability 12.0 and 12.1: block-wise FP8 fails while the model loads.

What happens: "Unknown SF transformation" or "Unknown recipe", an assertion of DeepGEMM, ends the engine. vLLM 0.24.0 says that
DeepGEMM supports capability 12.x (``CudaPlatform.support_deep_gemm``), and ships a DeepGEMM that does not; 0.23.0 did not say
so. Later builds have one for 12.0. On 12.1 (GB10) it ends with a CUDA fault (vllm-project/vllm#54125, open).

When it can go: when vLLM 0.29, with which 12.1 was last reported, is no longer supported.

Evidence: the reports, and ``support_deep_gemm`` in 0.23.0 to 0.33.0, which does not show what DeepGEMM itself can do. No such
GPU was at hand.
"""

from quirks_core import Affected, Default, Fact, Quirk, Severity, described, no, package, report, unknown, yes

_VARIABLE = "env.VLLM_USE_DEEP_GEMM"
_BLOCKS = {"model_type": "minimax_m2", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
_COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
_capability = Fact("platform.gpu.capability")
_fp8 = described(
    Fact("model.quantization.quant_method").one_of("fp8")
    | Fact("model.quantization.quant_algo").matches("^(FP8|MIXED)")
    | Fact("model.quantization.format").one_of("float-quantized", "mixed-precision"),
    "weights of the checkpoint are FP8",
    "no weights of the checkpoint are FP8",
)

QUIRK = Quirk(
    id="deep-gemm-capability",
    title="On GPUs of capability 12.x vLLM takes a DeepGEMM that has no kernels for them",
    match=_fp8 & (_capability.one_of(121) | (_capability.one_of(120) & package("vllm", fixed="0.25.0"))),
    affected=Affected("vllm", introduced="0.24.0", fixed="0.30.0"),
    adjustments=Default(_VARIABLE, "0", reason="this vLLM's DeepGEMM fails on this GPU, and other FP8 kernels work"),
    severity=Severity.CRASH,
    crash="Unknown SF transformation|Unknown recipe",
    references=[report("vllm-project/vllm#47436"), report("vllm-project/vllm#47130"), report("vllm-project/vllm#54125")],
    examples=[
        yes(_BLOCKS, vllm="0.24.0", platform="cuda", extra={"platform.gpu.capability": 120}, gives={_VARIABLE: "0"}),
        yes({"quantization_config": _COMPRESSED}, vllm="0.29.0", platform="cuda", extra={"platform.gpu.capability": 121}),
        no(_BLOCKS, vllm="0.25.0", platform="cuda", extra={"platform.gpu.capability": 120}),
        no(_BLOCKS, vllm="0.23.0", platform="cuda", extra={"platform.gpu.capability": 120}),
        no("minimax_m2", vllm="0.24.0", platform="cuda", extra={"platform.gpu.capability": 120}),
        unknown(_BLOCKS, platform="cuda", extra={"platform.gpu.capability": 120}),
    ],
)
