"""Experts that each refit makes again, and constants of the old ones that CUDA graphs have captured, one row each.

What happens: after a weight update the graphs read freed memory: garbage, or "an illegal memory access". A layerwise reload
puts weights back into their old memory, and not the tensors that these experts make in their constructors.

``cutlass-constants-refit``: constants of FlashInfer's activation (``gemm1_alpha``, ``gemm1_beta``, ``gemm1_clamp_limit``) and a
scale (``fake_input_scale``). Unquantised experts keep their object. A backend that was left open is not examined: for MXFP4
vLLM tries two other kernels first; for block FP8 with expert parallelism on Hopper it tries this one first (0.33.0), if
FlashInfer is installed.

``fp8-strides-refit``: strides of vLLM's CUTLASS experts for FP8 (``CutlassExpertsFp8Base``), which vLLM takes for
compressed-tensors checkpoints with a scale per channel, and for ``quantization: fp8_per_channel``; with a scale per tensor only
if the user asks for ``cutlass``; for ``quant_method`` ``fp8`` never.

When it can go: when a reload keeps these tensors (vllm-project/vllm#48312), as vllm-project/vllm#50521 does: in its figures, a
reload of gpt-oss-20b on an H100 moved 72 of 72 of them without that change, and none with it. vllm-project/vllm#41670 shows the
crash, and that triton is not affected. Garbage was not shown there, nor by us.
"""

from typing import Any

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, Match, described, model_type, platform, purpose, setting
from quirks_plugins.conditions import mixture, quantized
from quirks_plugins.runs import QWEN3_MOE

_BACKEND = "engine.moe_backend"
_MXFP4 = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
#: Such models have a limit, which becomes one of the constants.
_limited = model_type("gpt_oss") | Fact("model.config.swiglu_limit").is_set()
_CUTLASS = {_BACKEND: "flashinfer_cutlass"}

CUTLASS_CONSTANTS_REFIT = Quirk(
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
        no(_MXFP4, {_BACKEND: "triton"}, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, {**_CUTLASS, "engine.enforce_eager": True}, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, _CUTLASS, vllm="0.32.0", platform="cuda", purpose="serve"),
        no(_MXFP4, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, _CUTLASS, vllm="0.32.0", platform="cpu"),
        yes({**_MXFP4, "model_type": "acme_moe", "swiglu_limit": 7.0}, _CUTLASS, vllm="0.32.0", platform="cuda"),
        no("gpt_oss", _CUTLASS, vllm="0.32.0", platform="cuda"),
        no(_MXFP4, {**_CUTLASS, "engine.hf_overrides": {"quantization_config": {}}}, vllm="0.32.0", platform="cuda"),
        no({**_MXFP4, "model_type": "qwen3_moe"}, _CUTLASS, vllm="0.32.0", platform="cuda"),
        unknown(_MXFP4, _CUTLASS, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)

_QUANTIZATION = "model.config.quantization_config"


def _fp8(strategy: str) -> dict[str, Any]:
    weights = {"type": "float", "num_bits": 8, "strategy": strategy}
    groups = {"group_0": {"weights": {**weights, "num_bits": 4}}, "group_1": {"weights": weights}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    return {"model_type": "glm4_moe", "n_routed_experts": 8, "quantization_config": quantization}


def _scaled_by(strategy: str, number: int) -> Match:
    weights = f"{_QUANTIZATION}.config_groups.group_{number}.weights"
    return (
        Fact(f"{weights}.type").one_of("float")
        & Fact(f"{weights}.num_bits").one_of(8)
        & Fact(f"{weights}.strategy").one_of(strategy)
    )


#: The ways to FP8 for which vLLM takes these experts (fused_moe/oracle/fp8.py), by the first three groups of a checkpoint.
_per_channel, _per_tensor = (
    described(
        Fact(f"{_QUANTIZATION}.quant_method").one_of("compressed-tensors")
        & (_scaled_by(strategy, 0) | _scaled_by(strategy, 1) | _scaled_by(strategy, 2)),
        f"the checkpoint is compressed-tensors FP8 with a scale per {strategy}",
        f"the checkpoint is not compressed-tensors FP8 with a scale per {strategy}",
    )
    for strategy in ("channel", "tensor")
)
_CHANNEL = _fp8("channel")
_online = setting("engine.quantization").one_of("fp8_per_channel")

FP8_STRIDES_REFIT = Quirk(
    id="fp8-strides-refit",
    title="A refit of an FP8 MoE model frees strides of the CUTLASS experts that captured CUDA graphs still read",
    match=purpose("rollout")
    & platform("cuda")
    & mixture
    & (_per_channel | _online | (_per_tensor & setting(_BACKEND).one_of("cutlass")))
    & ~setting("engine.enforce_eager").is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Require(
        _BACKEND,
        "triton",
        instead_of=("cutlass",),
        reason="a refit makes the CUTLASS experts again, and CUDA graphs go on reading the memory of the old ones",
        remedy=f"set {_BACKEND}: triton, or engine.enforce_eager: true",
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm#41670"), report("vllm-project/vllm#48312")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.cutlass_moe", r"self\.ab_strides1 = ab_strides1_c_strides2"
    ),
    examples=[
        yes(_CHANNEL, vllm="0.32.0", platform="cuda", gives={_BACKEND: "triton"}),
        yes(_CHANNEL, {_BACKEND: "cutlass"}, vllm="0.33.0", platform="cuda", refuses=_BACKEND),
        yes(_fp8("tensor"), {_BACKEND: "cutlass"}, vllm="0.33.0", platform="cuda", refuses=_BACKEND),
        no(_fp8("tensor"), vllm="0.33.0", platform="cuda"),
        yes(QWEN3_MOE, {"engine.quantization": "fp8_per_channel"}, vllm="0.26.0", platform="cuda"),
        no(_CHANNEL, {"engine.enforce_eager": True}, vllm="0.32.0", platform="cuda"),
        no(
            {**_CHANNEL, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            vllm="0.32.0",
            platform="cuda",
        ),
        no(_CHANNEL, vllm="0.32.0", platform="cuda", purpose="serve"),
        no(_CHANNEL, vllm="0.32.0", platform="cpu"),
        unknown(_CHANNEL, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)
