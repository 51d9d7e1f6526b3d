"""Seeded requests on vLLM's CPU platform: a prompt that is split over several steps kills the engine.

What happens: the engine core dies with "CPU Generator does not use offset", and every request in it is lost. While a prompt is
not complete, vLLM samples a token for it and throws it away. If the request has a seed, vLLM then sets its generator back with
``set_offset``, which torch has for CUDA generators only. Any batch with seeds can cause this, as prompts that arrive together
are split once they exceed ``max_num_batched_tokens``; without chunked prefill vLLM demands a step that holds the longest
sequence.

When it can go: when vLLM restores the generators of such rows in another way than by an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, no, platform, report, unknown, yes
from quirks_plugins.conditions import v1_model_runner
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

QUIRK = Quirk(
    id="cpu-seeded-chunked-prefill",
    title="A seeded request whose prompt is split over steps kills the engine on vLLM's CPU platform",
    match=platform("cpu") & v1_model_runner,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.worker.cpu_model_runner:CPUModelRunner.sample_tokens",
        adds="quirks_plugins.runtime.cpu_seeded_chunked_prefill:sample_tokens",
        reason="vLLM winds the generator of a seeded request back by an offset, which torch's CPU generator does not have",
    ),
    severity=Severity.CRASH,
    crash="CPU Generator does not use offset",
    references=report("https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/worker/gpu_model_runner.py#L3502"),
    examples=[
        yes("qwen3", vllm="0.32.0", platform="cpu", purpose="serve"),
        no("qwen3", vllm="0.32.0", platform="cuda"),
        unknown("qwen3", vllm="0.32.0"),
    ],
)


def sample_tokens(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
    """Sample, without the seeded generators of requests whose token of this step is thrown away.

    Rows whose prompt is not complete yet (``discard_request_mask`` ``[requests]``) are sampled, and the token is discarded. On
    GPUs vLLM then winds the row's generator back; here the row draws from the process's own.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    batch = self.input_batch
    discarded = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    hidden = {row: batch.generators.pop(row) for row in discarded if row in batch.generators}
    try:
        return super(CPUModelRunner, self).sample_tokens(*args, **kwargs)
    finally:
        batch.generators.update(hidden)


async def scenario(lab: Lab) -> Outcome:
    """Seeded samples whose prompts are split over steps are those that each request gets alone."""
    from worker.lab.kit.lab import PROMPTS, batch_of

    model = lab.checkpoint("qwen3")
    # Less than the longest prompt, so that the prompts are split also when they come alone.
    values = {"engine": {"load_format": "auto", "max_num_batched_tokens": 32, "max_num_seqs": 4}}

    async def sampled(rows: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
        batch = {**batch_of(list(rows.values())), "seeds": list(rows)}
        found = [item async for item in worker.generate_async(batch)]
        return {list(rows)[index]: output["output_ids"][0].tolist() for index, output in found}

    async with lab.worker(model, values) as worker:
        together = await sampled(dict(enumerate(PROMPTS)))
        alone: dict[int, list[int]] = {}
        for seed, prompt in enumerate(PROMPTS):
            await worker.reset_prefix_cache_async()
            alone |= await sampled({seed: prompt})
    same = sum(together[seed] == alone[seed] for seed in alone)
    total = len(PROMPTS)
    return Outcome(same == total, "seeded samples equal to those made alone", f"{same} of {total}", f"{total} of {total}")
