"""If the prefix cache is kept during a weight update, new requests get keys and values that older policies computed.

What happens: rollout and trainer drift apart step by step, and a restart hides it. Every later request with a known prefix (a
system prompt, the other samples of a group) attends to keys and values of the weights that first filled the block. There is no
bound on their age; NVIDIA-NeMo/RL#4018 saw blocks 17 updates old. vLLM keeps the KV cache of prompts whose prefix may come
again, and updating the weights does not clear it: vLLM leaves that decision to the user (vllm-project/vllm#46125). A refit
that keeps the cache for requests in flight also keeps the prefix cache.

What this changes: if ``refit.clear_cache`` is false, prefix caching is off. Requests in flight keep their own cache, as the
user asked; no new request gets it.

When it can go: when vLLM keys cached blocks by the version of the weights that made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import ModelFlag, Quirk, Require, Severity, no, purpose, report, setting, yes

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

_SLOT = "engine.enable_prefix_caching"
_KEPT, _CLEARED = {"refit.clear_cache": False}, {"refit.clear_cache": True}

QUIRK = Quirk(
    id="prefix-cache-after-update",
    title="A prefix cache that outlives a weight update gives new requests keys and values of older policies",
    flag=ModelFlag.PREFIX_CACHE,
    match=purpose("rollout") & setting("refit.clear_cache").one_of(False),
    adjustments=Require(
        _SLOT,
        False,
        remedy="set refit.clear_cache: true (or leave it open), and prefixes are cached between two updates; or set "
        "engine.enable_prefix_caching: false (or leave it open), and only requests in flight keep their cache",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/9744"),
        report("https://github.com/NVIDIA-NeMo/RL/pull/4018"),
        report("https://github.com/vllm-project/vllm/pull/46125"),
    ],
    examples=[
        yes(settings=_KEPT, gives={_SLOT: False}),
        yes(settings={**_KEPT, _SLOT: False}, gives={}),
        yes(settings={**_KEPT, _SLOT: True}, refuses=[_SLOT, "refit.clear_cache: true", f"{_SLOT}: false"]),
        no(settings={**_CLEARED, _SLOT: True}),
        no(settings={_SLOT: True}),
        no(settings=_KEPT, purpose="serve"),
    ],
    cost="prompts with a common prefix are computed anew for each request",
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
