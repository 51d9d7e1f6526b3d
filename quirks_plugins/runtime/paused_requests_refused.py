"""From vLLM 0.33.0 on, requests that arrive during a pause fail, where they waited before.

What happens: a trainer pauses generation to update weights (``pause_generation``, ``POST /pause``) with the default mode
``abort`` or with ``wait``. Rollout requests that arrive meanwhile end at once with the finish reason "error" and no tokens
(``engine_paused``). Up to 0.32 they were queued and served after ``resume``. vllm-project/vllm#51488 argues for the change: a
caller that pauses at a boundary should know what arrives after it. The mode ``keep`` queues as before. A trainer that handles
the error, or has a router that retries on another replica, can switch the quirk off.

When it can go: when trainers retry such requests, or pause with ``keep``.
"""

from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, SymbolProbe, no, purpose, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome

QUIRK = Quirk(
    id="paused-requests-refused",
    title="Rollout requests that arrive while generation is paused fail instead of waiting",
    match=purpose("rollout"),
    affected=Affected("vllm", introduced="0.33.0"),
    adjustments=Patch(
        "vllm.v1.engine.core:EngineCoreProc._reject_add_while_paused",
        replacement="quirks_plugins.runtime.paused_requests_refused:queue_add_while_paused",
        expects=("63cf5f1713b0",),
        reason="whether a paused engine refuses requests follows from the mode of the trainer's call",
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm/pull/51488"), report("vllm-project/vllm#32103")],
    evidence=SymbolProbe("vllm.v1.engine.core:EngineCoreProc._reject_add_while_paused", present_means_affected=True),
    examples=[
        yes("qwen3", vllm="0.33.0", patches="EngineCoreProc._reject_add_while_paused"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", vllm="0.33.0", purpose="serve"),
        unknown("qwen3"),
    ],
)


def queue_add_while_paused(self: Any, request: Any) -> bool:
    """Tells that a request is not refused, so that the scheduler queues it until generation resumes."""
    del self, request
    return False


async def scenario(lab: Lab) -> Outcome:
    """A request that arrives during a pause is answered after the engine resumes."""
    import asyncio

    async with lab.worker(lab.checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as worker:
        engine = lab.engine(worker)
        await engine.pause_generation(mode="abort")
        waiting = asyncio.create_task(_finish(engine))
        await asyncio.sleep(1)
        await engine.resume_generation()
        got = await waiting
    return Outcome(got == "length", "a request that arrives while generation is paused", f"finished by {got!r}", "'length'")


async def _finish(engine: Any) -> str:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=4, ignore_eos=True)
    try:
        async for output in engine.generate({"prompt_token_ids": [5, 6, 7]}, params, "paused"):
            result = output.outputs[0]
    except Exception as error:  # vLLM's own type, which other versions do not have
        return str(error)
    return str(result.finish_reason)
