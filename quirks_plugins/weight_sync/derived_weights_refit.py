"""Models that keep a copy which they make of their weights once: a refit leaves it at the old values.

What happens: after a weight update one part of each layer still computes with the weights before, without an error. GLM-5.3
joins the weights of three convolutions (``_merged_conv_weight``, from vLLM 0.30.0 on) and casts the gate of its indexer
(``_wp_fp32``) in the first forward pass; vllm-project/vllm#55087 reports the former. Qwen3-Next and Qwen3.5-MoE join the router
and the gate of the shared expert (``_combined_gate_weight``) where vLLM fuses shared experts, which it does with AITER on AMD
GPUs. Muse Spark, from vLLM 0.33.0 on, casts the norm after its experts. DeepSeek-V4 sums up a matrix (``hc_attn_fn_broadcast``)
at the end of each ``load_weights``, when a layerwise reload may not have written the weights yet.

What this changes: the end of a layerwise reload writes the new weights into these copies, in place, because CUDA graphs read
them there. The quirk is a patch, because no setting of vLLM has this effect. Our own worker copies weights past the reload, so
there a plan lists what is left out.

When it can go: when a layerwise reload runs a model's own hooks for loaded weights (``process_weights_after_loading``), and
these make the copies. There is no paired run: none of these models runs on a CPU in the way that makes the copies. A test makes
and reloads such a copy by vLLM's own functions.
"""

from __future__ import annotations

from quirks_core import (
    Advise,
    Affected,
    ModelFlag,
    Patch,
    Quirk,
    Severity,
    StaticProbe,
    model_type,
    no,
    purpose,
    report,
    unknown,
    yes,
)
from quirks_plugins.conditions import our_worker

_OURS = {"engine.generate_from_dummy": False}

QUIRK = Quirk(
    id="derived-weights-refit",
    title="A refit leaves copies that a model made of its weights at the old values",
    flag=ModelFlag.WEIGHT_SYNC,
    match=model_type("deepseek_v4", "deepseek_v41", "glm5_next", "muse_spark", "qwen3_5_moe", "qwen3_next")
    & purpose("rollout"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Patch(
            "vllm.model_executor.model_loader.reload.layerwise:finalize_layerwise_processing",
            wrapper="quirks_plugins.weight_sync.derived_weights_patches:wrap_finalize",
            expects=("ffc2e70746d6", "432c0e8c8405", "9b7b0eb59d3f", "46740d508102"),
            reason="a reload does not know of copies that a model made of its weights",
            when=~our_worker,
        ),
        Advise(
            "this model may keep copies of its weights that a refit of our worker does not reach: compare logprobs after the "
            "second refit (quirks parity)",
            when=our_worker,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/vllm-project/vllm/issues/55087"),
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.runner.moe_runner",
        r"if self\._combined_gate_weight is None:",
        found_means_affected=True,
    ),
    examples=[
        yes("glm5_next", vllm="0.32.0", patches="finalize_layerwise_processing"),
        yes("deepseek_v4", vllm="0.33.0", patches="finalize_layerwise_processing"),
        yes("muse_spark", vllm="0.33.0", patches="finalize_layerwise_processing"),
        yes("qwen3_next", _OURS, vllm="0.32.0", advises="keep copies of its weights"),
        no("qwen3_next", vllm="0.32.0", purpose="serve"),
        no("qwen3_moe", vllm="0.32.0"),
        unknown("glm5_next"),
    ],
    cost="one copy of these tensors in each refit",
)
