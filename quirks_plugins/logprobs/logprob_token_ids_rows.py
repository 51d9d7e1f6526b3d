"""A request with ``logprob_token_ids`` takes the top logprobs away from all other requests of its batch.

What happens: while one request has ``logprob_token_ids`` (the logprobs of given tokens, as in generative scoring), every other
request gets its sampled token and, in the place of its top k, token 0 with -inf (over HTTP: ``-9999.0``). Text and sampled
logprobs stay right, so a distillation loss or a reward that reads the top k is wrong only while such requests share a batch.
vLLM's V1 sampler (``Sampler.forward``) computes either the top k or the given tokens, for the batch as a whole. The V2 runner
does it for each request.

When it can go: with vllm-project/vllm#51789, or when no platform uses the V1 runner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, fix, no, report, setting, unknown, yes
from quirks_plugins.conditions import v1_model_runner
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    import torch
    from vllm.v1.outputs import LogprobsTensors, SamplerOutput
    from vllm.v1.sample.metadata import SamplingMetadata

QUIRK = Quirk(
    id="logprob-token-ids-rows",
    title="A request with logprob_token_ids replaces the top logprobs of all requests in its batch by -inf",
    match=v1_model_runner & ~setting("engine.max_logprobs").one_of(0),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.sample.sampler:Sampler.forward",
        wrapper="quirks_plugins.logprobs.logprob_token_ids_rows:wrap_sampler",
        expects=("3910a89dbb52", "a9939b7871ff"),
        reason="which of two results a batch gets is decided in the sampler, and no setting reaches it",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[fix("vllm-project/vllm/pull/51789"), report("vllm-project/vllm/pull/43463")],
    evidence=StaticProbe(
        "vllm.v1.sample.sampler",
        r"if logprob_token_ids_tensors is not None and num_logprobs is not None:\s+logprobs_tensors = logprob_token_ids_t",
    ),
    examples=[
        yes("qwen3", vllm="0.32.0", platform="cpu", patches="Sampler.forward"),
        yes("qwen3", vllm="0.33.0", platform="cpu", purpose="serve"),
        yes("qwen3", vllm="0.32.0", platform="cuda", env={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        no("qwen3", vllm="0.32.0", platform="cuda"),
        no("qwen3", {"engine.max_logprobs": 0}, vllm="0.32.0", platform="cpu"),
        unknown("qwen3", vllm="0.25.1", platform="cpu"),
    ],
    cost="the top k twice in batches that hold such a request",
)


def wrap_sampler(forward: Callable[..., SamplerOutput]) -> Callable[..., SamplerOutput]:
    """Returns a `Sampler.forward` that gives each request of a batch the logprobs that it asked for."""

    def per_request(
        self: Any, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any
    ) -> SamplerOutput:
        top = sampling_metadata.max_num_logprobs
        if not sampling_metadata.logprob_token_ids or not top or top < 0:
            return forward(self, logits, sampling_metadata, *args, **kwargs)

        def gather(logprobs: torch.Tensor, rows: dict[int, list[int]], sampled: torch.Tensor) -> LogprobsTensors:
            specific = type(self).gather_specific_token_logprobs(self, logprobs, rows, sampled)
            return _put(specific, rows, self.gather_logprobs(logprobs, top, token_ids=sampled))

        self.gather_specific_token_logprobs = gather
        try:
            return forward(self, logits, sampling_metadata, *args, **kwargs)
        finally:
            del self.gather_specific_token_logprobs

    return per_request


def _put(specific: LogprobsTensors, rows: dict[int, list[int]], top: LogprobsTensors) -> LogprobsTensors:
    """Puts some rows of one result into another of the same batch; the narrower one is filled with -inf.

    Args:
        specific: ``[batch, 1 + ids]``, valid in `rows`.
        rows: Its rows that are taken.
        top: ``[batch, 1 + k]``, the other rows.
    """
    import torch
    from vllm.v1.outputs import LogprobsTensors

    width = max(specific.logprobs.shape[1], top.logprobs.shape[1])

    def wide(tensor: torch.Tensor, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=value)

    taken = torch.zeros(top.logprobs.shape[0], 1, dtype=torch.bool)
    taken[list(rows)] = True
    taken = taken.to(top.logprobs.device, non_blocking=True)
    return LogprobsTensors(
        torch.where(taken, wide(specific.logprob_token_ids, 0), wide(top.logprob_token_ids, 0)),
        torch.where(taken, wide(specific.logprobs, float("-inf")), wide(top.logprobs, float("-inf"))),
        top.selected_token_ranks,
    )


async def scenario(lab: Lab) -> Outcome:
    """A request gets the same top logprobs whether it shares its batch with a request for given tokens or not."""
    async with lab.worker(lab.checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as worker:
        engine = lab.engine(worker)
        alone, shared = await _top(engine, None), await _top(engine, [7])
    same = set(alone) == set(shared) and max(abs(alone[token] - shared[token]) for token in alone) < 1e-3
    return Outcome(same, "top logprobs beside a request with logprob_token_ids", str(sorted(shared)), str(sorted(alone)))


async def _top(engine: Any, ids: list[int] | None) -> dict[int, float]:
    """Returns the logprobs of the fifth token of a request, by id; another one runs beside it if `ids` are given."""
    import asyncio

    from vllm import SamplingParams

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS

    async def run(prompt: tuple[int, ...], name: str, **wanted: Any) -> Any:
        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, **wanted)
        async for output in engine.generate({"prompt_token_ids": list(prompt)}, params, f"{name}-{ids}"):
            result = output.outputs[0]
        return result.logprobs[4]

    runs = [run(PROMPTS[0], "top", logprobs=5)]
    if ids:
        runs.append(run(PROMPTS[1], "given", logprob_token_ids=ids))
    return {token: entry.logprob for token, entry in (await asyncio.gather(*runs))[0].items()}
