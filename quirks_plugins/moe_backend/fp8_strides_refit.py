"""A refit of an FP8 MoE model frees tensors of the CUTLASS experts that captured CUDA graphs still read.

What happens: after a weight update, a rollout of an FP8 MoE model with CUDA graphs ends with "an illegal memory access", or
generates garbage. vLLM's CUTLASS experts for FP8 (``CutlassExpertsFp8Base``) allocate their strides when they are made. A
layerwise reload makes them again (``_setup_kernel``) and puts weights back into their old memory, but not these tensors, whose
addresses the graphs keep. vLLM takes these experts for compressed-tensors checkpoints with a scale per channel, and for
``quantization: fp8_per_channel``. Checkpoints with a scale per tensor get FlashInfer's experts, unless the user asks for
``cutlass``; those of ``quant_method`` ``fp8`` never get these.

When it can go: when a reload keeps these tensors (vllm-project/vllm#48312). vllm-project/vllm#41670 shows the crash, its causes
and that triton is not affected. A run needs a GPU: a tiny FP8 MoE model with a scale per channel, CUDA graphs on,
``reload_weights`` of the same checkpoint, then a few large tensors, and generation.
"""

from typing import Any

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, Match, platform, purpose, setting
from quirks_plugins.conditions import mixture
from quirks_plugins.runs import QWEN3_MOE

_BACKEND = "engine.moe_backend"
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

QUIRK = Quirk(
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
        yes(_fp8("tensor"), {_BACKEND: "cutlass"}, vllm="0.33.0", platform="cuda", refuses=_BACKEND),
        no(_fp8("tensor"), vllm="0.33.0", platform="cuda"),
        yes(QWEN3_MOE, {"engine.quantization": "fp8_per_channel"}, vllm="0.26.0", platform="cuda"),
        no(_CHANNEL, {"engine.enforce_eager": True}, vllm="0.32.0", platform="cuda"),
        no(_CHANNEL, vllm="0.32.0", platform="cuda", purpose="serve"),
        no(_CHANNEL, vllm="0.32.0", platform="cpu"),
        unknown(_CHANNEL, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)
