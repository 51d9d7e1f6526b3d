"""Models with a tied head on vLLM's CPU platform: after a refit the head still computes with the old weights.

What happens: after a refit the embeddings are new and the logits old, without an error; after a dummy start the logits mean
nothing. vLLM's CPU build packs the weight of an embedding or head for oneDNN, and computes logits from the packed copy alone.
A layerwise reload processes a tied weight in one layer, the embedding, because the checkpoint's only tensor arrives there. The
head shares the storage but keeps its packed copy. A trainer that sends ``lm_head.weight`` as well is not affected. Neither is
a CPU for which oneDNN has no product of the engine's dtype (bfloat16 without AVX-512, float16 without AVX-512 FP16), because
vLLM then packs nothing. Linux does not show whether an AVX2 CPU with AVX-VNNI has such products: the quirk stays active there.

When it can go: when vLLM's layerwise reload processes tied layers itself.
"""

from quirks_core import Affected, Patch, Quirk, Severity, no, platform, purpose, report, unknown, yes
from quirks_plugins.conditions import unpacked_on_cpu, untied
from quirks_plugins.kit import Lab, Outcome

_NESTED = {"model_type": "qwen2_vl", "text_config": {"tie_word_embeddings": True}}

QUIRK = Quirk(
    id="cpu-tied-head-refit",
    title="A refit leaves a tied head with its old weights on vLLM's CPU platform",
    match=platform("cpu") & purpose("rollout") & ~untied & ~unpacked_on_cpu,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.reload.layerwise:finalize_layerwise_processing",
        wrapper="quirks_plugins.weight_sync.cpu_refit_patches:wrap_finalize",
        expects=("ffc2e70746d6", "432c0e8c8405", "9b7b0eb59d3f", "46740d508102"),
        reason="a tied weight is packed anew in the embedding alone, and the head computes with its old packed copy",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm#48312"),
    examples=[
        yes({"model_type": "llama", "dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx512"),
        yes({"model_type": "llama", "dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx_vnni"),
        no({"model_type": "llama", "dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx2"),
        no("gemma3_text", {"engine.dtype": "float16"}, vllm="0.32.0", platform="cpu", cpu="avx512_bf16"),
        unknown({"model_type": "llama", "dtype": "bfloat16"}, vllm="0.32.0", platform="cpu"),
        yes({**_NESTED, "tie_word_embeddings": False}, vllm="0.32.0", platform="cpu"),
        no({"model_type": "llama", "tie_word_embeddings": True}, vllm="0.15.1", platform="cpu"),
        no({"model_type": "llama", "tie_word_embeddings": False}, vllm="0.32.0", platform="cpu"),
        no("gemma3_text", vllm="0.32.0", platform="cuda"),
        no("gemma3_text", vllm="0.32.0", platform="cpu", purpose="serve"),
    ],
    cost="packs the embedding and the head once more in each refit",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, generates what the second one does."""
    model = lab.checkpoint("llama_tied")
    second = lab.trainer(lab.checkpoint("llama_tied", seed=1))
    async with lab.worker(model) as worker:
        await worker.refit_async(lab.trainer(model))
        await worker.refit_async(second)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(second))
