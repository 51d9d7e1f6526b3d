"""DeepSeek-V2, V3, V3.2 and Kimi K2: vLLM rounds the router's logits to bfloat16, and the trainer does not.

What happens: in a bfloat16 rollout some tokens go to other experts than in the trainer, and their logprobs are off by far more
than rounding explains. This happens where the router's logits are close to each other, because each of them carries an error
of 2^-8. vLLM's router gives its logits in the model's dtype
(``vllm.model_executor.models.deepseek_v2:_get_moe_router_dtype``). transformers casts both factors to float32, and so do the
trainers: prime-rl patches vLLM for it. vLLM already has a setting for the router's dtype, a key of ``config.json``, but these
checkpoints do not have that key. For GLM-5 vLLM uses float32 without the key (vllm-project/vllm#47410).

What this changes: ``hf_overrides.moe_router_dtype`` becomes float32 for a rollout on a GPU, unless the user set it, or the
engine computes in float32 anyway. The product of the bfloat16 factors then keeps the precision in which it was accumulated.

When it can go: when vLLM uses float32 for these models, too.

Evidence: a static probe. On the CPU platform the setting has no effect, because the logits are rounded before they are cast.
On a GPU the effect would show in bfloat16, as the share of tokens that go to other experts than in transformers.
"""

from __future__ import annotations

from quirks_core import (
    Affected,
    Default,
    Fact,
    ModelFlag,
    Quirk,
    Severity,
    StaticProbe,
    model_type,
    no,
    platform,
    purpose,
    report,
    setting,
    unknown,
    yes,
)

_SLOT = "engine.hf_overrides"

QUIRK = Quirk(
    id="moe-router-float32",
    title="vLLM rounds the router logits of DeepSeek's models to the model's dtype, and tokens go to other experts",
    flag=ModelFlag.DTYPE,
    match=model_type("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
    & purpose("rollout")
    & platform("cuda", "rocm")
    & ~setting("engine.dtype").one_of("float32", "float")
    & ~Fact("model.config.moe_router_dtype").is_set(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Default(_SLOT, {"moe_router_dtype": "float32"}, reason="trainers route in float32"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/PrimeIntellect-ai/prime-rl/pull/2952"),
        report("https://github.com/vllm-project/vllm/pull/14027"),
        report("https://github.com/NVIDIA-NeMo/Automodel/issues/3650"),
        report("https://github.com/vllm-project/vllm/pull/47410"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.models.deepseek_v2",
        r'if router_dtype == "float32":\s+return torch\.float32\s+return None',
        found_means_affected=True,
    ),
    examples=[
        yes("deepseek_v3", vllm="0.32.0", platform="cuda", gives={_SLOT: {"moe_router_dtype": "float32"}}),
        yes(
            "deepseek_v3",
            {_SLOT: {"hidden_size": 64}},
            vllm="0.32.0",
            platform="cuda",
            gives={_SLOT: {"hidden_size": 64, "moe_router_dtype": "float32"}},
        ),
        yes("deepseek_v3", {_SLOT: {"moe_router_dtype": "bfloat16"}}, vllm="0.32.0", platform="cuda", gives={}),
        yes("deepseek_v3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cuda"),
        no("deepseek_v3", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cuda"),
        no({"model_type": "deepseek_v3", "moe_router_dtype": "bfloat16"}, vllm="0.32.0", platform="cuda"),
        no("deepseek_v3", vllm="0.32.0", platform="cpu"),
        no("deepseek_v3", vllm="0.32.0", platform="cuda", purpose="serve"),
        no("glm4_moe", vllm="0.32.0", platform="cuda"),
        unknown("deepseek_v3", vllm="0.32.0"),
    ],
    cost="a router without the kernels that take bfloat16 logits alone",
)
