"""A refit of an FP8 MoE model frees tensors of the CUTLASS experts that captured CUDA graphs still read.

What happens: after a weight update, a rollout of an FP8 MoE model with CUDA graphs ends with "an illegal memory access", or
generates garbage once the freed memory holds something else. vLLM's CUTLASS experts for FP8 (``CutlassExpertsFp8Base`` in
fused_moe/experts/cutlass_moe.py) allocate their strides when they are made. A layerwise reload makes them again
(``_setup_kernel`` of the quantisation method) and puts weights back into their old memory, but not these tensors, whose
addresses the graphs keep. vLLM takes these experts for compressed-tensors checkpoints with a scale per channel or tensor, and
for ``quantization: fp8_per_channel``; checkpoints of ``quant_method`` ``fp8`` never get them.

What this changes: ``engine.moe_backend`` becomes ``triton``, whose experts allocate nothing. If the user set ``cutlass``, the
run is refused; other values are left alone. With ``enforce_eager`` there are no graphs, and the quirk does nothing.

When it can go: when a reload keeps these tensors (vllm-project/vllm#48312). vllm-project/vllm#41670 shows the crash, its causes
and that triton is not affected.

Evidence: a static probe of the constructor. A run needs a GPU: a tiny FP8 MoE model with a scale per channel, CUDA graphs on,
``reload_weights`` of the same checkpoint, then a few large tensors, then generation.
"""

from __future__ import annotations

from quirks_core import (
    Affected,
    Fact,
    ModelFlag,
    Quirk,
    Require,
    Severity,
    StaticProbe,
    described,
    no,
    platform,
    purpose,
    report,
    setting,
    unknown,
    yes,
)
from quirks_plugins.conditions import mixture
from quirks_plugins.runs import QWEN3_MOE

_BACKEND = "engine.moe_backend"
_GROUP = "model.config.quantization_config.config_groups.group_0.weights"
_FP8 = {
    "model_type": "glm4_moe",
    "n_routed_experts": 8,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}},
    },
}

#: The ways to FP8 for which vLLM considers these experts (``allow_vllm_cutlass`` in fused_moe/oracle/fp8.py).
_checkpoint = described(
    Fact("model.config.quantization_config.quant_method").one_of("compressed-tensors")
    & Fact(f"{_GROUP}.type").one_of("float")
    & Fact(f"{_GROUP}.num_bits").one_of(8)
    & Fact(f"{_GROUP}.strategy").one_of("channel", "tensor"),
    "the checkpoint is compressed-tensors FP8 with a scale per channel or tensor",
    "the checkpoint is not compressed-tensors FP8 with a scale per channel or tensor",
)
_online = setting("engine.quantization").one_of("fp8_per_channel")

QUIRK = Quirk(
    id="fp8-strides-refit",
    title="A refit of an FP8 MoE model frees strides of the CUTLASS experts that captured CUDA graphs still read",
    flag=ModelFlag.MOE_BACKEND,
    match=purpose("rollout")
    & platform("cuda")
    & mixture
    & (_checkpoint | _online)
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
    references=[
        report("https://github.com/vllm-project/vllm/issues/41670"),
        report("https://github.com/vllm-project/vllm/issues/48312"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.cutlass_moe",
        r"self\.ab_strides1 = ab_strides1_c_strides2",
        found_means_affected=True,
    ),
    examples=[
        yes(_FP8, vllm="0.32.0", platform="cuda", gives={_BACKEND: "triton"}),
        yes(_FP8, {_BACKEND: "cutlass"}, vllm="0.33.0", platform="cuda", refuses=_BACKEND),
        yes(QWEN3_MOE, {"engine.quantization": "fp8_per_channel"}, vllm="0.26.0", platform="cuda"),
        no(_FP8, {"engine.enforce_eager": True}, vllm="0.32.0", platform="cuda"),
        no(
            {**_FP8, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            vllm="0.32.0",
            platform="cuda",
        ),
        no(_FP8, vllm="0.32.0", platform="cuda", purpose="serve"),
        no(_FP8, vllm="0.32.0", platform="cpu"),
        unknown(_FP8, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)
