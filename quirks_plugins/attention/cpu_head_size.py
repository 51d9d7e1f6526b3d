"""vLLM's CPU platform supports only some widths of attention heads. With any other width the first request ends the engine.

What happens: the engine loads the model, starts and answers its health check. The first request then ends it with "Unsupported
CPU attention configuration" (or "head_dim"). The kernels are compiled for heads of 32, 64, 80, 96, 112, 128, 160, 192, 224,
256 and 512 (``vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend.get_supported_head_sizes``), and vLLM does not compare
the model with that list when the engine starts. Tiny models for tests, and small models with heads of 16, 40, 48 or 72, are
affected.

What this changes: the run is refused with this reason.

When it can go: when vLLM checks the width while the engine starts, or has a kernel for any width. The list is the one in vLLM
0.26.0 to 0.33.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import (
    Affected,
    Fact,
    ModelFlag,
    Quirk,
    Refuse,
    Severity,
    StaticProbe,
    no,
    platform,
    report,
    unknown,
    yes,
)
from quirks_plugins.conditions import latent_attention

if TYPE_CHECKING:
    from worker.testing.lab import Lab, Outcome

_SIZE = Fact("model.head_size")
_SUPPORTED = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)

QUIRK = Quirk(
    id="cpu-head-size",
    title="vLLM's CPU platform has attention kernels for some widths of heads only, and finds out at the first request",
    flag=ModelFlag.ATTENTION,
    # The heads of latent attention have other widths than the configuration's.
    match=platform("cpu") & _SIZE.is_set() & ~_SIZE.one_of(*_SUPPORTED) & ~latent_attention,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Refuse(
        f"vLLM's CPU platform computes attention with heads of {', '.join(map(str, _SUPPORTED))} alone",
        "take a GPU, or a model with other heads (head_dim in config.json, or hidden_size / num_attention_heads); a setting "
        "like engine.dtype does not help",
    ),
    severity=Severity.CRASH,
    crash="Unsupported CPU attention|[Uu]nsupported head",
    references=[
        report("https://github.com/vllm-project/vllm/issues/39065"),
        report("https://github.com/vllm-project/vllm/pull/31968"),
    ],
    evidence=StaticProbe(
        "vllm.v1.attention.backends.cpu_attn",
        r"return \[32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512\]",
        found_means_affected=True,
    ),
    examples=[
        yes({"hidden_size": 64, "num_attention_heads": 4}, vllm="0.32.0", platform="cpu"),
        yes({"num_attention_heads": 4, "head_dim": 72}, vllm="0.32.0", platform="cpu"),
        no({"num_attention_heads": 4, "head_dim": 128}, vllm="0.32.0", platform="cpu"),
        no({"num_attention_heads": 4, "head_dim": 72}, vllm="0.32.0", platform="cuda"),
        no("mamba2", vllm="0.32.0", platform="cpu"),
        unknown({"num_attention_heads": 4, "head_dim": 72}, vllm="0.32.0"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The run is refused, or its logprobs are the trainer's."""
    from quirks_plugins.model_config.evidence import edited, refused_or_close

    # The same weights, cut into twice as many heads.
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return await refused_or_close(lab, edited(lab, "llama", "narrow", heads), {})
