"""Models with latent attention, and LFM2, generate nonsense on vLLM's CPU platform in eager mode.

What happens: with ``enforce_eager`` such a model (DeepSeek-V3 without YaRN, Moonlight, GLM-4.7-Flash, LFM2 and its MoE form)
generates nonsense on the CPU platform without an error. In float32 only 3 of 72 greedy tokens of a tiny DeepSeek-V3, and 7 of
72 of a tiny LFM2, agree with transformers. These models pass tensors ``[tokens, heads, dim]`` to the rotary embedding. The CPU
kernel behind ``RotaryEmbedding.forward_cpu`` expects ``[tokens, heads x dim]``, rotates the first head and leaves the others;
of slices, which latent attention passes, it also rotates memory that does not belong to the key. The CUDA kernel accepts both
forms since vllm-project/vllm#12777 and #18046. With compilation vLLM computes the formula in torch instead, which gives the
right result. DeepSeek's kind of YaRN (``deepseek_yarn``) has a rotary class of its own and is not affected.

When it can go: when the CPU kernel accepts tensors of three dimensions, or vLLM takes the formula again
(vllm-project/vllm#31643).
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, fix, no, report, unknown, yes
from quirks_core.declaration.match import model_type, platform, setting
from quirks_plugins.conditions import latent_attention
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import MOONLIGHT

_SLOT, _OFF = "engine.compilation_config", "-rotary_embedding"
_typed = setting("engine.compilation_config.custom_ops")
_is_off = _typed.any_in(_OFF) | (_typed.any_in("none") & ~_typed.any_in("+rotary_embedding"))
_lfm2 = model_type("lfm2", "lfm2_moe")

QUIRK = Quirk(
    id="cpu-mla-rotary",
    title="The rotary kernel of vLLM's CPU platform rotates only the first head of latent attention and of LFM2",
    match=platform("cpu") & (latent_attention | _lfm2) & ~_is_off,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Require(
        _SLOT,
        {"custom_ops": [_OFF]},
        reason="the rotary kernel of vLLM's CPU platform takes no tensors with a dimension for heads, as this model gives it",
        remedy=f"add {_OFF} to engine.compilation_config.custom_ops",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/12777"),
        report("vllm-project/vllm/pull/18046"),
        fix("vllm-project/vllm/pull/31643"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.rotary_embedding.base", r"def forward_cpu\([\s\S]{0,500}?ops\.rotary_embedding\(\n"
    ),
    examples=[
        yes(MOONLIGHT, {_SLOT: {"mode": 0}}, vllm="0.32.0", platform="cpu", gives={_SLOT: {"mode": 0, "custom_ops": [_OFF]}}),
        yes(MOONLIGHT, {_SLOT: {"custom_ops": ["none", "+rotary_embedding"]}}, vllm="0.32.0", platform="cpu", refuses=_OFF),
        no(MOONLIGHT, {_SLOT: {"custom_ops": ["all", _OFF]}}, vllm="0.32.0", platform="cpu"),
        no(MOONLIGHT, {_SLOT: {"custom_ops": ["none", "+rms_norm"]}}, vllm="0.32.0", platform="cpu"),
        no(MOONLIGHT, vllm="0.32.0", platform="cuda"),
        yes("lfm2_moe", vllm="0.32.0", platform="cpu"),
        no("qwen3", vllm="0.32.0", platform="cpu"),
        unknown(MOONLIGHT, vllm="0.32.0"),
    ],
    cost="the rotary embedding as a handful of torch operations instead of one kernel",
)


async def scenario(lab: Lab) -> Outcome:
    """The engine generates what transformers does."""
    model = lab.checkpoint("deepseek_v3")
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
