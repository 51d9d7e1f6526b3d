"""DeepSeek-V2, V3, V3.2, Kimi K2, GLM-5.3 and others: vLLM rounds the router's logits to bfloat16, and the trainer does not.

What happens: in a bfloat16 rollout each logit of the router carries a relative error of up to 2^-9, and where two experts are
close to each other, a token can go to another expert than in the trainer. vLLM's router gives its logits in the model's dtype
(``_get_moe_router_dtype`` of deepseek_v2); trainers cast both factors to float32. vLLM's setting for the router's dtype is a
key of ``config.json``, which these checkpoints do not have. It has a kernel for float32 logits from 0.29.0 on with every NVIDIA
GPU, before with Hopper and data-center Blackwell alone, and from 0.28.0 on with ROCm. Elsewhere it rounds before it casts, and
the key has no effect. EXAONE-MoE and A.X-K1 do not read the key.

When it can go: when vLLM uses float32 for these models, too. How many tokens go to other experts was not measured by us.
"""

from quirks_core import Affected, Default, Quirk, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, package, platform, purpose, setting

_SLOT = "engine.hf_overrides"
_KEY = {"moe_router_dtype": "float32"}
_text_only = model_type("deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note", "kimi_k2")
_multimodal = model_type("deepseek_vl_v2", "glm5_next", "kimi_k25", "kimi_vl")
_capability = Fact("platform.gpu.capability")
#: The product in float32 exists: Hopper and the family of SM100 have one in every version.
_on_cuda = package("vllm", introduced="0.29.0") | _capability.one_of(90) | (_capability.above(99) & _capability.below(110))
_has_kernel = described(
    (platform("cuda") & _on_cuda) | (platform("rocm") & package("vllm", introduced="0.28.0")),
    "this vLLM has a kernel with float32 logits for the GPU",
    "this vLLM has no kernel with float32 logits for the platform",
)
_A100, _HOPPER = {"platform.gpu.capability": 80}, {"platform.gpu.capability": 90}

QUIRK = Quirk(
    id="moe-router-float32",
    title="vLLM rounds the router logits of DeepSeek's models to the model's dtype, and trainers route in float32",
    match=(
        (_text_only & ~Fact("model.config.moe_router_dtype").is_set())
        | (_multimodal & ~Fact("model.config.text_config.moe_router_dtype").is_set())
    )
    & purpose("rollout")
    & _has_kernel
    & ~setting("engine.dtype").one_of("float32", "float"),
    affected=Affected("vllm", introduced="0.25.1"),
    adjustments=[
        Default(_SLOT, _KEY, reason="trainers route in float32", when=_text_only),
        Default(_SLOT, {"text_config": _KEY}, reason="trainers route in float32", when=_multimodal),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("PrimeIntellect-ai/prime-rl/pull/2952"),
        report("vllm-project/vllm/pull/14027"),
        report("NVIDIA-NeMo/Automodel#3650"),
        report("vllm-project/vllm/pull/47410"),
        report("vllm-project/vllm/pull/50268"),
        report("vllm-project/vllm/pull/54048"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.models.deepseek_v2", r'if router_dtype == "float32":\s+return torch\.float32\s+return None'
    ),
    examples=[
        yes("deepseek_v3", vllm="0.28.0", platform="cuda", extra=_HOPPER, gives={_SLOT: _KEY}),
        no("deepseek_v3", vllm="0.28.0", platform="cuda", extra=_A100),
        unknown("deepseek_v3", vllm="0.28.0", platform="cuda"),
        yes("deepseek_v3", vllm="0.28.0", platform="rocm", gives={_SLOT: _KEY}),
        no("deepseek_v3", vllm="0.27.1", platform="rocm"),
        yes("glm5_next", vllm="0.30.0", platform="cuda", gives={_SLOT: {"text_config": _KEY}}),
        no({"model_type": "kimi_vl", "text_config": _KEY}, vllm="0.32.0", platform="cuda"),
        no("deepseek_v3", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cuda"),
        no({"model_type": "deepseek_v3", "moe_router_dtype": "bfloat16"}, vllm="0.32.0", platform="cuda"),
        no("deepseek_v3", vllm="0.32.0", platform="cuda", purpose="serve"),
    ],
    cost="a router without the kernels that take bfloat16 logits alone",
)
