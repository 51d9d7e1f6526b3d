"""With speculative decoding, a request with ``logprob_token_ids`` ends the engine, or gets no logprobs.

What happens: one request for the logprobs of given tokens (``logprob_token_ids``), in a batch with a request for logprobs that
has draft tokens, ends the engine with ``RuntimeError: shape mismatch``. Without such a neighbour it gets no logprobs at all,
silently. The V1 rejection sampler requests the full logits of the last token and leaves ``logprob_token_ids`` in the metadata,
so that the sampler returns a few columns. It then gathers only top k, and only if a request needs them. On CUDA the V1 runner
is still the one for n-gram drafts before 0.32, and for a ``draft_model`` before 0.31. The V2 runner returns no logprobs of the
given tokens beside drafts: ``v2-request-limits`` refuses such requests there.

When it can go: with vllm-project/vllm#44727, which is open, or when no platform uses the V1 runner.
"""

import asyncio
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, fix, no, report, setting, unknown, yes
from quirks_plugins.conditions import v1_model_runner
from quirks_plugins.kit import Lab, Outcome

#: Tokens of the tiny vocabulary.
_ALL = 512
_DRAFT = {"engine.speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}

QUIRK = Quirk(
    id="speculative-logprob-token-ids",
    title="With speculative decoding, one request with logprob_token_ids ends the engine",
    match=v1_model_runner & setting("engine.speculative_config").is_set(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.sample.rejection_sampler:RejectionSampler.forward",
        wrapper="quirks_plugins.logprobs.token_rows_patches:wrap_rejection_sampler",
        expects=("1598edd8c623", "5fe75d6b2e17", "714aaf6b7d42"),
        reason="the sampler is called with metadata that no setting reaches",
    ),
    severity=Severity.CRASH,
    crash=r"shape mismatch|EngineDeadError|EngineCore encountered an issue",
    references=[report("vllm-project/vllm#42592"), fix("vllm-project/vllm/pull/44727")],
    evidence=StaticProbe(
        "vllm.v1.sample.rejection_sampler", r"sampling_metadata=replace\(\s+sampling_metadata,\s+max_num_logprobs=-1,\s+\)"
    ),
    examples=[
        yes("qwen3", _DRAFT, vllm="0.32.0", platform="cpu", patches="RejectionSampler.forward"),
        yes("qwen3", _DRAFT, vllm="0.26.0", platform="cuda", purpose="serve"),
        no("qwen3", _DRAFT, vllm="0.32.0", platform="cuda"),
        no("qwen3", vllm="0.32.0", platform="cpu"),
        unknown("qwen3", _DRAFT, vllm="0.25.1", platform="cpu"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A request for the logprobs of given tokens gets them beside one with drafts, and with the values that it gets alone."""
    model = lab.checkpoint("qwen3")
    draft = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    values = {"engine": {"load_format": "auto", "max_logprobs": _ALL, "speculative_config": draft}}
    async with lab.worker(model, values) as worker:
        engine = lab.engine(worker)
        given, top = await asyncio.gather(_run(engine, "given", logprob_token_ids=[7, 9]), _run(engine, "top", logprobs=_ALL))
    off = max(abs(one[token].logprob - other[token].logprob) for one, other in zip(given, top, strict=True) for token in (7, 9))
    return Outcome(
        off < 1e-3, "logprobs of given tokens, with drafts", f"{off:.2g} nats off", "those of the same request's top k"
    )


async def _run(engine: Any, name: str, **wanted: Any) -> list[dict[int, Any]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **wanted)
    async for output in engine.generate({"prompt_token_ids": [5, 6, 7, 8]}, params, name):
        result = output.outputs[0]
    return list(result.logprobs)
