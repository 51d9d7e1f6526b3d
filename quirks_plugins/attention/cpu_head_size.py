"""vLLM's CPU platform supports only some widths of attention heads. With any other width the first request ends the engine.

What happens: the engine loads the model, starts and answers its health check. The first request then ends it with "Unsupported
CPU attention configuration" (or "head_dim"). The kernels are compiled for heads of 32, 64, 80, 96, 112, 128, 160, 192, 224,
256 and 512 (``vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend.get_supported_head_sizes``), and vLLM does not compare
the model with that list when the engine starts. Latent attention (DeepSeek-V2 and V3) has kernels for ``kv_lora_rank`` 512
with ``qk_rope_head_dim`` 64 alone. Any other pair ends with "Head dimension … is not supported by MLA", or, if the sum is 320,
512 or 576, with "Unsupported block size". Tiny models for tests, and small models with heads of 16, 40, 48 or 72, are affected.

When it can go: when vLLM checks the width while the engine starts, or has a kernel for any width.
"""

from quirks_core import Affected, Kind, PairedRun, Quirk, Refuse, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, platform, setting
from quirks_plugins.conditions import latent_attention
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited, refused_or_close, sampled

_SIZE = Fact("model.head_size")
_SUPPORTED = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
#: The model types that vLLM computes with latent kernels (``is_deepseek_mla``). It computes others, as MiniCPM3, with ordinary
#: attention, and refuses sparse ones (DeepSeek-V3.2) itself.
_LATENT_TYPES = (
    *("axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"),
    *("kimi_k2", "kimi_linear", "longcat_flash", "pangu_ultra_moe"),
)
_has_latent_kernels = Fact("model.text_config.model_type").one_of(*_LATENT_TYPES) & ~setting("env.VLLM_MLA_DISABLE").one_of("1")

_rank, _rotary = Fact("model.text_config.kv_lora_rank"), Fact("model.text_config.qk_rope_head_dim")
_other_latent_kernel = described(
    _has_latent_kernels & _rank.is_set() & _rotary.is_set() & ~(_rank.one_of(512) & _rotary.one_of(64)),
    "vLLM computes the model's latent attention with kernels of its own, which have other widths than the model "
    "(`kv_lora_rank` and `qk_rope_head_dim`)",
    "no kernel of latent attention has other widths than the model",
)


#: Small latent attention, with heads of a width that other attention has a kernel for.
_NARROW = {"model_type": "deepseek_v2", "num_attention_heads": 4, "head_dim": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32}

QUIRK = Quirk(
    id="cpu-head-size",
    title="vLLM's CPU platform has attention kernels for some widths of heads only, and finds out at the first request",
    kind=Kind.RULE,
    # The heads of latent attention have other widths than the configuration's.
    match=platform("cpu") & ((_SIZE.is_set() & ~_SIZE.one_of(*_SUPPORTED) & ~latent_attention) | _other_latent_kernel),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Refuse(
        f"vLLM's CPU platform computes attention with heads of {', '.join(map(str, _SUPPORTED))} alone, and latent attention "
        "with kv_lora_rank 512 and qk_rope_head_dim 64 alone",
        "take a GPU, or a model with other heads (in config.json head_dim, or hidden_size / num_attention_heads; for "
        "latent attention kv_lora_rank and qk_rope_head_dim); a setting like engine.dtype does not help",
    ),
    severity=Severity.CRASH,
    crash="Unsupported CPU attention|[Uu]nsupported head|is not supported by MLA|Unsupported block size",
    references=[report("vllm-project/vllm#39065"), report("vllm-project/vllm/pull/31968")],
    evidence=[
        PairedRun("quirks_plugins.attention.cpu_head_size:heads"),
        PairedRun("quirks_plugins.attention.cpu_head_size:latent"),
        StaticProbe("vllm.v1.attention.backends.cpu_attn", r"return \[32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512\]"),
    ],
    examples=[
        yes({"hidden_size": 64, "num_attention_heads": 4}, vllm="0.32.0", platform="cpu", refuses="head_dim"),
        no({"num_attention_heads": 4, "head_dim": 128}, vllm="0.32.0", platform="cpu"),
        no({"num_attention_heads": 4, "head_dim": 72, "qk_rope_head_dim": 64}, vllm="0.32.0", platform="cpu"),
        no({"num_attention_heads": 4, "head_dim": 72}, vllm="0.32.0", platform="cuda"),
        yes(_NARROW, vllm="0.32.0", platform="cpu"),
        yes({**_NARROW, "kv_lora_rank": 256, "qk_rope_head_dim": 64}, vllm="0.32.0", platform="cpu"),
        no({**_NARROW, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, vllm="0.32.0", platform="cpu"),
        no({**_NARROW, "model_type": "minicpm3"}, vllm="0.32.0", platform="cpu"),
        no(_NARROW, vllm="0.32.0", platform="cpu", env={"VLLM_MLA_DISABLE": "1"}),
        no("mamba2", vllm="0.32.0", platform="cpu"),
        unknown({"num_attention_heads": 4, "head_dim": 72}, vllm="0.32.0"),
    ],
)


async def heads(lab: Lab) -> Outcome:
    """The run is refused, or its logprobs are the trainer's."""
    # The same weights, cut into twice as many heads.
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return await refused_or_close(lab, edited(lab, "llama", "narrow", heads), {})


async def latent(lab: Lab) -> Outcome:
    """The run of a model with small latent attention is refused, or generates."""
    from quirks_core.plan.records import RefusedError

    model = edited(lab, "deepseek_v3", "narrow", {"kv_lora_rank": 64, "qk_rope_head_dim": 32})
    try:
        got = await sampled(lab, model, {"load_format": "dummy", "generate_from_dummy": True})
    except RefusedError as error:
        return Outcome(True, "samples", f"refused: {error.refusals[0].reason}", "refused, or some")
    return Outcome(bool(got), "samples", str(len(got)), "refused, or some")
