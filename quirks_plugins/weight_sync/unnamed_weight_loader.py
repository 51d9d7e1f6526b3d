"""MiniMax-M2: every refit fails, because one of its weight loaders has no name.

What happens: the first weight update fails with ``AttributeError: 'functools.partial' object has no attribute '__name__'``, in
``initialize_layerwise_reload``. vLLM's reload recognises the loaders that it has wrapped by their ``__name__``. MiniMax's
norms (``MiniMaxText01RMSNormTP``) have a ``functools.partial`` as their loader, and that has no such attribute. Attention
layers have such loaders as well if the checkpoint holds scales of a quantised KV cache in the format of compressed-tensors.
After the error, the layers that the reload had already processed stay on the meta device, so the engine is of no use; our own
worker puts them back.

When it can go: when vLLM's reload marks its loaders by something else than a name.
"""

from quirks_core import Affected, Fact, Patch, Quirk, Severity, StaticProbe, model_type, no, purpose, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_KV_SCALES = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}}

QUIRK = Quirk(
    id="unnamed-weight-loader",
    title="A refit of MiniMax-M2 fails, because vLLM's reload asks a weight loader for a name that it does not have",
    match=(model_type("minimax_m2") | Fact("model.quantization.kv_cache_scheme").is_set()) & purpose("rollout"),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.reload.layerwise:_get_weight_loader",
        wrapper="quirks_plugins.weight_sync.reload_patches:wrap_get_weight_loader",
        expects=("a1e57fbf569d",),
        reason="a functools.partial has no __name__",
    ),
    severity=Severity.CRASH,
    crash=r"'functools\.partial' object has no attribute '__name__'",
    references=report("vllm-project/vllm#48312"),
    evidence=StaticProbe("vllm.model_executor.layers.minimax_rms_norm.rms_norm_tp", r"\.weight_loader = partial\("),
    examples=[
        yes("minimax_m2", vllm="0.33.0"),
        yes({"model_type": "llama", **_KV_SCALES}, vllm="0.32.0"),
        no("minimax_m2", vllm="0.15.1"),
        no("minimax_m2", vllm="0.32.0", purpose="serve"),
        no("llama", vllm="0.32.0"),
        unknown("minimax_m2"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that got a checkpoint's weights by a refit generates what one does that started from them."""
    # vLLM's CPU platform routes by softmax alone and transformers by sigmoid, so the engine is its own reference.
    second = lab.checkpoint("minimax_m2", seed=1)
    trainer = lab.trainer(second)
    async with lab.worker(lab.checkpoint("minimax_m2")) as worker:
        await worker.refit_async(trainer)
        got = await lab.greedy(worker)
    async with lab.worker(second, {"engine": {"load_format": "auto"}}) as worker:
        expected = await lab.greedy(worker)
    return lab.same_tokens(got, expected, "greedy tokens equal to those of an engine that started from the same weights")
