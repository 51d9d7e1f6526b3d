"""A weight update while requests run either recomputes their KV cache or leaves keys and values of the old weights in it.

What happens: if the KV cache is kept, new queries attend to keys and values of the old weights. The logprobs after the update
then belong to neither policy, and no trainer can compute them again. If the cache is dropped, every request in flight is
computed anew from its first token once generation goes on, and its further tokens are those of the new weights, as a trainer
computes them. An engine that is paused for an update (``keep``) can do either. vLLM drops by default (``clear_cache=True``,
vllm-project/vllm#57970), and so do recipes that compare trainer and engine exactly. PipelineRL and prime-rl keep the cache,
because computing anew costs as much as the prompts and everything generated so far (pytorch/torchtitan#4761). In
NVIDIA-NeMo/RL#3839 the trainer's own switch had no effect for a while: the cache stayed, and nothing showed it.

What this changes: ``refit.clear_cache`` becomes true for a rollout unless the user set it. If the user set it to false, the
plan says what that means. If this quirk is switched off and the setting is left open, the cache is kept, with all cached
prefixes; set it to false instead, and ``prefix-cache-after-update`` handles the prefixes.

When it can go: never; it is a choice, not a workaround.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from quirks_core import Advise, Default, Kind, ModelFlag, Quirk, Severity, no, purpose, report, setting, yes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.async_worker import VllmAsyncGenerationWorker
    from worker.lab.kit.lab import Generated, Lab, Outcome

QUIRK = Quirk(
    id="in-flight-update-cache",
    title="Requests that outlive a weight update attend to what the old weights left in the KV cache",
    flag=ModelFlag.KV_CACHE,
    kind=Kind.RULE,
    match=purpose("rollout"),
    adjustments=[
        Default("refit.clear_cache", True, reason="requests in flight are computed anew, and their logprobs are one policy's"),
        Advise(
            "refit.clear_cache is false: requests in flight at an update go on with keys and values of the old weights, so "
            "their later logprobs are no single policy's, and a trainer cannot compute them again; train on those that were "
            "sampled, or set it to true",
            when=setting("refit.clear_cache").one_of(False),
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/32103"),
        report("https://github.com/vllm-project/vllm/pull/57970"),
        report("https://github.com/NVIDIA-NeMo/RL/pull/3839"),
        report("https://github.com/pytorch/torchtitan/pull/4761"),
        report("https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"),
    ],
    examples=[
        yes(gives={"refit.clear_cache": True}),
        yes(settings={"refit.clear_cache": True}, gives={}),
        yes(settings={"refit.clear_cache": False}, gives={}, advises="keys and values of the old weights"),
        no(purpose="serve"),
        no(purpose="eval"),
    ],
    cost="at each update, requests in flight are computed anew: their prompts and all that they generated so far",
)

#: Long enough that the update comes in the middle.
_NEW_TOKENS = 600


async def scenario(lab: Lab) -> Outcome:
    """Tokens that come after an update in the middle of their request have the new policy's logprobs."""
    model = lab.checkpoint("qwen3")
    second = lab.trainer(lab.checkpoint("qwen3", seed=1))
    values = {"engine": {"max_model_len": 1024}, "sampling": {"max_new_tokens": _NEW_TOKENS}}
    async with lab.worker(model, values) as worker:
        await worker.refit_async(lab.trainer(model), version="first")
        generating = asyncio.create_task(_generated(worker))
        await _under_way(worker)
        await worker.refit_async(second, version="second")
        rows, starts = await generating
    expected = lab.rescored(second, rows)
    measure = "largest difference to the new trainer's logprobs, on tokens after the update"
    return lab.close_logprobs(_since(starts, rows), _since(starts, expected), tolerance=1e-2, measure=measure)


async def _generated(worker: VllmAsyncGenerationWorker) -> tuple[list[Generated], list[int]]:
    """Returns what was made of each prompt, and from which token on by the second weights."""
    from worker.lab.kit.lab import PROMPTS, Generated, batch_of

    outputs = dict([item async for item in worker.generate_async(batch_of(PROMPTS))])
    rows, starts = [], []
    for index, prompt in enumerate(PROMPTS):
        output = outputs[index]
        values: dict[str, Any] = {name: output[name][0, len(prompt) :].tolist() for name in ("output_ids", "logprobs")}
        rows.append(Generated(tuple(values["output_ids"]), tuple(values["logprobs"])))
        (_, (_, start, _)) = output["weight_versions"][0]  # of an engine that labels its tokens, and updated in the middle
        starts.append(start)
    return rows, starts


async def _under_way(worker: VllmAsyncGenerationWorker) -> None:
    """Waits until every request has some tokens."""
    from worker.lab.kit.lab import PROMPTS

    while len(made := await worker.engine.generated_so_far()) < len(PROMPTS) or min(made) < 10:  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.001)


def _since(starts: Sequence[int], rows: Sequence[Generated]) -> list[Generated]:
    from worker.lab.kit.lab import Generated

    return [Generated(row.tokens[at:], row.logprobs[at:]) for at, row in zip(starts, rows, strict=True)]
