"""If the prefix cache is kept during a weight update, new requests get keys and values that older policies computed.

What happens: rollout and trainer drift apart step by step, and a restart hides it. Every later request with a known prefix (a
system prompt, the other samples of a group) attends to keys and values of the weights that first filled the block;
NVIDIA-NeMo/RL#4018 saw blocks 17 updates old. Updating the weights does not clear the cache: vLLM leaves that decision to the
user (vllm-project/vllm#46125). A reset by the trainer is refused while requests run: ``reset_prefix_cache`` returns False, the
HTTP route answers 200 with ``"success": false``, and most callers do not look (NovaSky-AI/SkyRL#1824, NVIDIA-NeMo/RL#3929).

Updates are noticed through every call that reaches the workers: ``update_weights`` of a transfer engine, ``reload_weights``,
``load_weights`` called by a worker extension or on the model itself. Writes into the model's tensors past all of these are not
noticed. Requests that run during an update keep their cache, as in vLLM. With the quirk nobody needs to reset the cache.

When it can go: when vLLM keys cached blocks by the version of the weights that made them.
"""

from quirks_core import Affected, Patch, Quirk, Severity, fix, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_SLOT = "engine.enable_prefix_caching"
_PATCHES = "quirks_plugins.prefix_cache.weight_version_patches"
_CORE = "vllm.v1.engine.core:EngineCore"

#: Requests get a salt; ``lora-reload-cache`` has the same patches.
SALTED_REQUESTS = (
    Patch(
        f"{_CORE}.preprocess_add_request",
        wrapper=f"{_PATCHES}:wrap_preprocess",
        expects=("60b862d940ac",),
        reason="a request is hashed there",
    ),
    Patch(
        f"{_CORE}.add_request",
        wrapper=f"{_PATCHES}:wrap_add_request",
        expects=("7c15bad7933e", "7f9755045255", "be0d1d656991"),
        reason="a request that was hashed before an update gets the salt of the new weights",
    ),
)

QUIRK = Quirk(
    id="prefix-cache-after-update",
    title="A prefix cache that outlives a weight update gives new requests keys and values of older policies",
    match=purpose("rollout") & ~setting(_SLOT).one_of(False),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        *SALTED_REQUESTS,
        Patch(
            f"{_CORE}.collective_rpc",
            wrapper=f"{_PATCHES}:wrap_collective_rpc",
            expects=("caad873823bb",),
            reason="every update that a trainer asks for goes through it",
        ),
        Patch(
            "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
            wrapper=f"{_PATCHES}:wrap_load_model",
            expects=("5c00f43731f8", "b95fd04df01f", "ee1975c78da7", "939e4d07443b", "8579297b4f00", "39c27f400e70"),
            reason="loads by a program's own code are noticed at the model",
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#9744"),
        report("NVIDIA-NeMo/RL/pull/4018"),
        report("NovaSky-AI/SkyRL/pull/1824"),
        report("vllm-project/vllm/pull/46125"),
        fix("PrimeIntellect-ai/prime-rl/pull/2266"),
    ],
    examples=[
        yes(
            "qwen3",
            vllm="0.32.0",
            patches=[
                "BaseModelLoader.load_model",
                "EngineCore.add_request",
                "EngineCore.collective_rpc",
                "EngineCore.preprocess_add_request",
            ],
        ),
        no("qwen3", {_SLOT: False}, vllm="0.32.0"),
        no("qwen3", vllm="0.32.0", purpose="serve"),
        unknown("qwen3"),
    ],
    cost="one call to the workers at each call through collective_rpc; 5 µs per request; at an update 11 µs for each that "
    "waits, and its hashes once more when it is scheduled; nothing per token",
)


async def scenario(lab: Lab) -> Outcome:
    """After an update that keeps the cache, prompts that were seen before get the new policy's logprobs."""
    model = lab.checkpoint("qwen3")
    second = lab.trainer(lab.checkpoint("qwen3", seed=1))
    # Only whole blocks are cached, and only one of the prompts is longer than the smallest that every platform has.
    values = {"engine": {"vllm_kwargs": {"block_size": 32}}, "refit": {"clear_cache": False}}
    async with lab.worker(model, values) as worker:
        await worker.refit_async(lab.trainer(model))
        await lab.sample(worker)
        await worker.refit_async(second)
        got = await lab.sample(worker)
    measure = "largest difference to the new trainer's logprobs, on prompts seen before the update"
    return lab.close_logprobs(got, lab.rescored(second, got), measure=measure)
