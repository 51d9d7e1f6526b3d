"""Models with a tied head on vLLM's CPU platform: after a refit the head still computes with the old weights.

What happens: vLLM's CPU build packs the weight of an embedding or head for its kernels, and computes logits from the packed
copy alone. A layerwise reload processes a tied weight in one layer, the embedding, because that is where the one tensor of a
checkpoint arrives; the head shares the storage but keeps its packed copy. Embeddings are then new and logits old, without an
error; after a dummy start the logits mean nothing. A trainer that sends ``lm_head.weight`` as well does not see it.

What this changes: the end of a reload packs the weight anew in all layers that share it. No setting does that; computing logits
in another dtype than the model's (``head_dtype``) avoids the packed copy, but is no choice for a model in float32.

When it can go: when vLLM's layerwise reload processes tied layers itself. Nobody has reported it, as far as we can see;
vllm-project/vllm#48312 collects such defects. The source was read in vLLM 0.16.0, the first release with layerwise reload, and
0.26.0 to 0.33.0; the patch is written for the latter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import (
    Affected,
    Answer,
    Example,
    Fact,
    ModelFlag,
    PairedRun,
    Patch,
    Quirk,
    Severity,
    platform,
    purpose,
    report,
)

if TYPE_CHECKING:
    from quirks_core.testing.lab import Lab, Outcome

#: The source in vLLM 0.26.0 to 0.27.1, 0.28.0 to 0.30.0, and 0.31.0 to 0.33.0, line by line.
_FINALIZE_SOURCES = (
    (
        "432c0e8c8405dc55d587f2132403af7cf21f158243a91962be4e5501ae81567c:"
        "757087b6d267cbea9530d377ef5264e3b0c464bd258c8555e3b0c494f785bd1290dd1b85b6d2670b32cc5dd26ee3b0c42e8942e3b0c4"
        "22b50b07fc2459f4aa5c0e65e256eee3b0c4c7558aa1abd77d05b1e256eee3b0c4d224b853a1b9813586da1eccbd5ebbe256eee3b0c4"
        "d202b56cd607c0efc877813ae7ae00859e27e3b0c4310ffa6f6b97922d8e95b83fe1502b20e486bd5ebbe3b0c45c0e65e3b0c45eae06"
        "034b94a065525c0e65e3b0c44fd9ae"
    ),
    (
        "9b7b0eb59d3fd5379e0a60039cf62213bae85e919d76f9fe4f7c04e8f5356858:"
        "757087b6d267cbea9530d377ef5264e3b0c464bd258c8555e3b0c494f785bd1290dd1b85b6d2670b32cc5dd26ee3b0c42e8942e3b0c4"
        "22b50b07fc2459f4aa5c0e65e256eee3b0c474751cd664177d05b1e256eee3b0c4d224b853a1b9813586da1eccbd5ebbe256eee3b0c4"
        "d202b56cd607c0efc877813ae7ae00859e27e3b0c4310ffa6f6b97922d8e95b83fe1502b20e486bd5ebbe3b0c45c0e65e3b0c45eae06"
        "034b94a065525c0e65e3b0c44fd9ae"
    ),
    (
        "46740d508102aa60ce0cd416933a5a38ec7bcf9f7a1233dbb926ab1296a927bd:"
        "7570875ac52630d377ef5264e3b0c464bd258c8555e3b0c494f785bd1290dd1b85e3b0c4b6d2670b32cc5dd26ee3b0c42e8942e3b0c4"
        "22b50b07fc2459f4aa5c0e65e256eee3b0c474751cd664177d05b1e256eee3b0c4d224b853a1b9813586da1eccbd5ebbe256eee3b0c4"
        "d202b56cd607c0efc877813ae7ae00859e27e3b0c4310ffa6f6b97922d8e95b83fe1502b20e486bd5ebbe3b0c45c0e65e3b0c45eae06"
        "034b94a065525c0e65e3b0c44fd9ae"
    ),
)

# Most configurations leave the key out, and then their class decides: only a plain no is a no.
_untied = (
    Fact("model.config.tie_word_embeddings").one_of(False) & ~Fact("model.config.text_config.tie_word_embeddings").is_true()
)

QUIRK = Quirk(
    id="cpu-tied-head-refit",
    title="A refit leaves a tied head with its old weights on vLLM's CPU platform",
    flag=ModelFlag.WEIGHT_SYNC,
    match=platform("cpu") & purpose("rollout") & ~_untied,
    affected=(Affected("vllm", introduced="0.16.0"),),
    adjustments=(
        Patch(
            "vllm.model_executor.model_loader.reload.layerwise:finalize_layerwise_processing",
            wrapper="quirks_plugins.weight_sync.cpu_refit_patches:wrap_finalize",
            expects=_FINALIZE_SOURCES,
            reason="a tied weight is packed anew in the embedding alone, and the head computes with its old packed copy",
        ),
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(report("https://github.com/vllm-project/vllm/issues/48312"),),
    evidence=(PairedRun("quirks_plugins.weight_sync.cpu_tied_head_refit:scenario", "live on vLLM 0.32.0"),),
    examples=(
        Example(answer=Answer.YES, config={"model_type": "gemma3_text"}, packages={"vllm": "0.32.0"}, platform="cpu"),
        Example(
            answer=Answer.YES,
            config={"model_type": "llama", "tie_word_embeddings": True},
            packages={"vllm": "0.32.0"},
            platform="cpu",
        ),
        Example(
            answer=Answer.NO,
            config={"model_type": "llama", "tie_word_embeddings": False},
            packages={"vllm": "0.32.0"},
            platform="cpu",
        ),
        Example(answer=Answer.NO, config={"model_type": "gemma3_text"}, packages={"vllm": "0.32.0"}, platform="cuda"),
        Example(
            answer=Answer.NO, config={"model_type": "gemma3_text"}, packages={"vllm": "0.32.0"}, platform="cpu", purpose="serve"
        ),
        Example(answer=Answer.UNKNOWN, config={"model_type": "gemma3_text"}, packages={"vllm": "0.32.0"}),
    ),
    cost="packs the embedding and the head once more in each refit",
    since="0.1.0",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, generates what the second one does."""
    model = lab.checkpoint("llama_tied")
    second = lab.trainer(lab.checkpoint("llama_tied", seed=1))
    async with lab.worker(model) as worker:
        await worker.refit_async(lab.trainer(model))
        await worker.refit_async(second)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(second))
