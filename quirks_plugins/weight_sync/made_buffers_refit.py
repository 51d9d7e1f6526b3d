"""Layers that make buffers of their weights after loading: a reload leaves the buffers at the old values, or fails on them.

What happens: on an MI350 or MI355, the first weight update of a model whose router computes in float32 (GLM-4.5, MiniMax-M2,
ERNIE 4.5, Step-3.5) ends with ``KeyError: "attribute '_bf16x3_weight' already exists"``, from vLLM 0.32 on. ``GateLinear``
assigns the split of its weight to a buffer that the reload has removed, so it becomes a plain attribute, and the reload cannot
register the buffer again. Where a layer registers such a buffer itself, nothing fails: the reload takes it for a constant that
was not sent, and puts the old one back. So a DSpark draft in ModelOpt's NVFP4 proposes tokens by the Markov head that it
started with (``_nvfp4_weight_for_gather``, from 0.30 on).

When it can go: when vLLM's reload copies back the buffers that it did not make itself.
"""

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, platform, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import mixture

_DRAFT = {"engine.speculative_config": {"method": "dspark", "num_speculative_tokens": 4}}
_GLM = {"model_type": "glm4_moe", "n_routed_experts": 8}

QUIRK = Quirk(
    id="made-buffers-refit",
    title="A reload fails on buffers that a layer makes of its weights, or leaves them at the old values",
    match=purpose("rollout")
    & ((platform("rocm") & mixture) | (platform("cuda") & setting("engine.speculative_config.method").one_of("dspark"))),
    affected=Affected("vllm", introduced="0.30.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.reload.layerwise:_place_kernel_tensors",
        wrapper="quirks_plugins.weight_sync.reload_patches:wrap_place",
        expects=("ad92af163676",),
        reason="a reload takes buffers that a layer makes of its weights for constants",
    ),
    severity=Severity.CRASH,
    references=report("vllm-project/vllm#48312"),
    evidence=StaticProbe("vllm.model_executor.layers.quantization.modelopt", r'"_nvfp4_weight_for_gather"'),
    examples=[
        yes(_GLM, vllm="0.33.0", platform="rocm", patches="_place_kernel_tensors"),
        yes("qwen3", _DRAFT, vllm="0.30.0", platform="cuda", patches="_place_kernel_tensors"),
        no(_GLM, vllm="0.33.0", platform="cuda"),
        no("qwen3", vllm="0.33.0", platform="rocm"),
        no(_GLM, vllm="0.33.0", platform="rocm", purpose="serve"),
        no(_GLM, vllm="0.29.0", platform="rocm"),
        unknown(_GLM, platform="rocm"),
    ],
    cost="microseconds per layer in each refit, and one copy of these buffers",
)
