"""``reset_prefix_cache`` does nothing while requests run, and most callers do not notice.

What happens: the trainer updates weights while requests run and resets the prefix cache after each update, but vLLM refuses
every reset. Samples whose prompt was seen before are then computed from keys and values of older weights. The only sign is a
line of the engine's log, "Failed to reset prefix cache because some blocks are not freed yet". vLLM resets only while no
request holds a block (``BlockPool.reset_prefix_cache``) and returns False otherwise; the HTTP route answers 200 with
``"success": false``, and trainers drop the result (NovaSky-AI/SkyRL#1824, NVIDIA-NeMo/RL#3929). If requests wait for keys and
values from another engine (a KV connector), a forced reset still fails, with a warning. An engine in the trainer's own process
(``VLLM_ENABLE_V1_MULTIPROCESSING=0``) is not reached.

When it can go: when trainers pass ``reset_running_requests=True``, or vLLM raises instead of returning False.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from quirks_core import Affected, Patch, Quirk, Severity, fix, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc

QUIRK = Quirk(
    id="prefix-reset-refused",
    title="A reset of the prefix cache is refused while requests run, and old keys and values outlive weight updates",
    match=purpose("rollout") & ~our_worker & ~setting("engine.enable_prefix_caching").one_of(False),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.engine.core:EngineCoreProc.reset_prefix_cache",
        adds="quirks_plugins.prefix_cache.prefix_reset_refused:reset_prefix_cache",
        reason="whether running requests are preempted is an argument of the trainer's call, which no setting reaches",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/12284"),
        fix("vllm-project/vllm/pull/28827"),
        fix("NovaSky-AI/SkyRL/pull/1824"),
        report("NVIDIA-NeMo/RL/pull/3839"),
    ],
    examples=[
        yes("qwen3", vllm="0.32.0"),
        no("qwen3", {"engine.generate_from_dummy": False}, vllm="0.32.0"),
        no("qwen3", {"engine.enable_prefix_caching": False}, vllm="0.32.0"),
        no("qwen3", vllm="0.32.0", purpose="serve"),
        unknown("qwen3"),
    ],
    cost="at each reset, requests in flight are computed anew: their prompts and all that they generated so far",
)

_LOG = logging.getLogger("model_quirks")


def reset_prefix_cache(self: EngineCoreProc, reset_running_requests: bool = True, reset_connector: bool = False) -> bool:
    """Reset the prefix cache, and preempt running requests, whose blocks vLLM would otherwise not give up.

    It returns whether the cache is reset. The arguments are those of vLLM's method; `reset_running_requests` counts as true.
    """
    from vllm.v1.engine.core import EngineCoreProc

    del reset_running_requests
    reset = super(EngineCoreProc, self).reset_prefix_cache
    try:
        return bool(reset(True, reset_connector))
    except RuntimeError as error:  # requests that wait for keys and values from another engine keep their blocks
        _LOG.warning("reset_prefix_cache: %s", error)
        return False


async def scenario(lab: Lab) -> Outcome:
    """After an update and a reset while a request runs, prompts that were seen before get the new policy's logprobs."""
    from worker.lab.kit.lab import PROMPTS, batch_of

    model = lab.checkpoint("qwen3")
    second = lab.trainer(lab.checkpoint("qwen3", seed=1))
    # Only whole blocks are cached, and only one of the prompts is longer than the smallest that every platform has.
    values = {"engine": {"block_size": 32, "max_model_len": 1024}}
    # By itself, prefix-cache-after-update keeps old blocks from new requests.
    async with lab.worker(model, values, disable=["prefix-cache-after-update"]) as worker:
        await worker.refit_async(lab.trainer(model))
        await lab.sample(worker)
        long = worker.config.sampling.model_copy(update={"max_new_tokens": 900})

        async def run() -> None:
            async for _ in worker.generate_async(batch_of(PROMPTS[:1]), sampling=long):
                pass

        running = asyncio.create_task(run())
        while not max(await worker.engine.generated_so_far(), default=0):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.001)
        await worker.refit_async(second, clear_cache=False)  # as trainers do that reset the cache by themselves
        await lab.engine(worker).reset_prefix_cache()
        got = await lab.sample(worker)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    measure = "largest difference to the new trainer's logprobs, on prompts seen before the update"
    return lab.close_logprobs(got, lab.rescored(second, got), measure=measure)
