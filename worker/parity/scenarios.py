"""The situations in which rollout and trainer are compared; a cold start is the easy one.

A scenario makes samples with the running engine and says who the other side is: the trainer, or the engine itself on another
path. It never corrects anything, and it leaves no request behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quirks_core.errors import QuirksError
from worker import vllm_adapter
from worker.config import SamplingSection
from worker.errors import RefitError
from worker.parity.records import Sample
from worker.parity.session import NEW, OLD, Session

#: Temperatures other than 1 that are measured, besides the configured one: a sharper and a flatter distribution.
_TEMPERATURES = (0.7, 1.3)
#: Pairs of top-p and top-k.
_TRUNCATIONS = ((0.9, -1), (1.0, 20), (0.9, 20))
#: Tokens that a request has made when new weights come, and at least makes after them.
_BEFORE, _AFTER = 8, 64
#: How many long prompts are sent at once.
_LONG_ROWS = 3


@dataclass(frozen=True, slots=True)
class Observed:
    """What a scenario saw.

    Attributes:
        samples: The samples; those that have no ``trainer`` yet are scored by it.
        notes: Further facts.
    """

    samples: list[Sample]
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation.

    Attributes:
        name: Its name on the command line.
        title: What it asks, in one line.
        observe: Makes the samples.
        concern: Says why it does not concern a session; empty if it does.
        counts: Whether a crossed threshold counts, given how the run is configured.
        needs_trainer: It cannot run with the engine alone.
    """

    name: str
    title: str
    observe: Callable[[Session], Awaitable[Observed]]
    concern: Callable[[Session], str] = lambda _: ""
    counts: Callable[[Session], bool] = lambda _: True
    needs_trainer: bool = True


# ---- with the checkpoint's weights


async def _cold_start(session: Session) -> Observed:
    await session.hold(OLD)
    samples, _ = await session.generate()
    return Observed(samples)


async def _temperature(session: Session) -> Observed:
    await session.hold(OLD)
    configured = session.sampling.temperature
    found: list[Sample] = []
    for temperature in dict.fromkeys((*((configured,) if configured not in (0, 1) else ()), *_TEMPERATURES)):
        samples, _ = await session.generate(
            sampling=_sampling(session, temperature=temperature), note=f"temperature {temperature:g}"
        )
        found += samples
    return Observed(found)


async def _top_p_top_k(session: Session) -> Observed:
    await session.hold(OLD)
    found: list[Sample] = []
    for top_p, top_k in _TRUNCATIONS:
        sampling = _sampling(session, temperature=1.0, top_p=top_p, top_k=top_k)
        samples, _ = await session.generate(sampling=sampling, note=f"top_p {top_p:g}, top_k {top_k}")
        found += samples
    return Observed(found)


async def _decode_prefill(session: Session) -> Observed:
    if session.trainer is not None:
        await session.hold(OLD)
    samples, _ = await session.generate(sampling=_sampling(session, temperature=1.0))
    prefilled = await session.prefilled(samples)
    return Observed([sample.model_copy(update={"trainer": row}) for sample, row in zip(samples, prefilled, strict=True)])


async def _prefix_cache(session: Session) -> Observed:
    if session.trainer is not None:
        await session.hold(OLD)
    await session.worker.reset_prefix_cache_async()
    rows = session.prompts.long(_cached_length(session), _LONG_ROWS)
    missed, _ = await session.generate(rows, rank=_one_rank(session), note="miss")
    hit, cached = await session.generate(rows, rank=_one_rank(session), note="hit")
    if not cached:
        raise QuirksError("no token of a prompt came from the prefix cache the second time, so that nothing was shown")
    notes = {"prompt tokens": sum(map(len, rows)), "from the prefix cache": cached}
    if session.trainer is not None:
        return Observed([*missed, *hit], notes)
    return Observed([_against(one, other) for one, other in zip(hit, missed, strict=True)], notes)


async def _long_context(session: Session) -> Observed:
    await session.hold(OLD)
    window = sliding_window(session)
    longest = session.max_model_len - session.sampling.max_new_tokens - 1
    length = min(longest, 2 * window if window else longest)
    samples, _ = await session.generate(session.prompts.long(length, _LONG_ROWS))
    return Observed(samples, {"prompt length": length, "sliding window": window or "none"})


async def _data_parallel(session: Session) -> Observed:
    await session.hold(OLD)
    found: list[Sample] = []
    for rank in range(_ranks(session)):
        samples, _ = await session.generate(rank=rank, note=f"rank {rank}")
        found += samples
    return Observed(found, {"ranks": _ranks(session)})


# ---- with weights that change


async def _after_refit(session: Session) -> Observed:
    await session.hold(OLD)
    rows = session.prompts.long(_cached_length(session), _LONG_ROWS) if not _no_long_prompts(session) else session.prompts.rows
    # A prefix cache has seen the prompts under the old weights.
    await session.generate(rows, rank=_one_rank(session))
    await session.refit(NEW)
    samples, cached = await session.generate(rows, rank=_one_rank(session))
    await session.hold(OLD)
    return Observed(samples, {"from the prefix cache": cached, **await _power(session, samples)})


def _in_flight(clear_cache: bool) -> Callable[[Session], Awaitable[Observed]]:
    async def observe(session: Session) -> Observed:
        await session.hold(OLD)
        longest = max(map(len, session.prompts.rows))
        new_tokens = min(session.max_model_len - longest, max(_BEFORE + _AFTER, 4 * session.sampling.max_new_tokens))
        sampling = _sampling(session, max_new_tokens=new_tokens)
        async with session.under_way(session.prompts.rows, sampling, _BEFORE) as generating:
            await session.refit(NEW, clear_cache=clear_cache)
            samples, _ = await generating
        after = sum(end - start for sample in samples for label, start, end in sample.scoring.weights if label == NEW)
        if not after:
            raise RefitError(
                f"all requests had made their {new_tokens} tokens before the new weights came; ask for more (--tokens)"
            )
        await session.hold(OLD)
        notes = {"tokens under the new weights": after, "of": sum(len(sample.tokens) for sample in samples)}
        return Observed(samples, notes)

    return observe


async def _sleep_wake(session: Session) -> Observed:
    await session.hold(OLD)
    await session.worker.sleep_async(level=1)
    await session.worker.wake_up_async()
    kept, _ = await session.generate(note="level 1")
    await session.worker.sleep_async(level=2)
    await session.worker.wake_up_async(tags=["weights"])
    session.forget_weights()
    await session.refit(OLD)
    await session.worker.wake_up_async(tags=["kv_cache"])
    dropped, _ = await session.generate(note="level 2")
    return Observed([*kept, *dropped])


# ---- what they share


async def _power(session: Session, samples: Sequence[Sample]) -> dict[str, Any]:
    """How far the weights were changed: a scenario in which they hardly differ would show nothing."""
    old = await session.scored([_labelled(sample, OLD) for sample in samples])
    new = await session.scored([_labelled(sample, NEW) for sample in samples])
    apart = [abs(a - b) for x, y in zip(old, new, strict=True) for a, b in zip(x.trainer, y.trainer, strict=True)]
    return {"mean |Δ logprob| of old and new weights": sum(apart) / len(apart) if apart else 0.0}


def _labelled(sample: Sample, label: str) -> Sample:
    weights = ((label, 0, len(sample.tokens)),)
    return sample.model_copy(update={"trainer": (), "scoring": sample.scoring.model_copy(update={"weights": weights})})


def _against(one: Sample, other: Sample) -> Sample:
    """Compares a sample with another run of the same prompt, as far as both have the same tokens."""
    pairs = zip(one.tokens, other.tokens, strict=True)
    same = next((index for index, (a, b) in enumerate(pairs) if a != b), len(one.tokens))
    update = {"tokens": one.tokens[:same], "rollout": one.rollout[:same], "trainer": other.rollout[:same]}
    return one.model_copy(update=update)


def _sampling(session: Session, **values: Any) -> SamplingSection:
    return session.sampling.model_copy(update=values)


def sliding_window(session: Session) -> int | None:
    """Returns the model's sliding window in tokens; None if it has none."""
    found = session.worker.plan.context.model.text_config.get("sliding_window")
    return found if isinstance(found, int) and found > 0 else None


def _cached_length(session: Session) -> int:
    """Prompts of two whole blocks and a half, if they fit: only whole blocks are reused."""
    longest = session.max_model_len - session.sampling.max_new_tokens - 1
    return min(longest, 2 * session.block_size + session.block_size // 2)


def _ranks(session: Session) -> int:
    return int(session.worker.plan.value("engine.data_parallel_size") or 1)


def _one_rank(session: Session) -> int | None:
    """Data-parallel ranks have caches of their own: who asks twice must ask the same one."""
    return 0 if _ranks(session) > 1 else None


def _no_prefix_cache(session: Session) -> str:
    if not session.llm.vllm_config.cache_config.enable_prefix_caching:
        return "engine.enable_prefix_caching is off"
    return _no_long_prompts(session)


def _no_long_prompts(session: Session) -> str:
    if _cached_length(session) <= session.block_size:
        needed = session.block_size + session.sampling.max_new_tokens + 2
        return (
            f"engine.max_model_len = {session.max_model_len} leaves no room for a prompt above the KV cache's block of "
            f"{session.block_size} tokens; {needed} would"
        )
    return ""


def _no_ranks(session: Session) -> str:
    return "" if _ranks(session) > 1 else "engine.data_parallel_size is 1"


def _no_sleep(session: Session) -> str:
    if session.worker.plan.context.platform == "cpu":
        return "vLLM's CPU platform cannot sleep"
    return "" if session.worker.plan.value("engine.enable_sleep_mode") else "engine.enable_sleep_mode is off"


def _no_versions(_: Session) -> str:
    return "" if vllm_adapter.labels_tokens() else "this vLLM does not say which weights made a token (0.32 does)"


def _no_switch(clear_cache: bool) -> Callable[[Session], bool]:
    return lambda session: session.refits.clear_cache is clear_cache


_SCENARIOS = (
    Scenario("cold-start", "as the run begins, before anything was updated", _cold_start),
    Scenario("temperature", "sampled at temperatures other than 1", _temperature),
    Scenario("top-p-top-k", "sampled from a part of the vocabulary; the trainer masks its logits alike", _top_p_top_k),
    Scenario("decode-prefill", "the engine's own tokens, computed again as a prompt", _decode_prefill, needs_trainer=False),
    Scenario(
        "prefix-cache", "the same prompts, found in the prefix cache", _prefix_cache, _no_prefix_cache, needs_trainer=False
    ),
    Scenario("long-context", "prompts beyond a sliding window, or as long as fits", _long_context),
    Scenario("data-parallel", "every data-parallel rank", _data_parallel, _no_ranks),
    Scenario("after-refit", "new weights, and prompts that the old ones have seen", _after_refit),
    Scenario(
        "in-flight-cleared", "new weights while requests run, their KV cache dropped", _in_flight(True), _no_versions,
        _no_switch(True),
    ),
    Scenario(
        "in-flight-kept", "new weights while requests run, their KV cache kept", _in_flight(False), _no_versions,
        _no_switch(False),
    ),
    Scenario("sleep-wake", "after sleep and wake, of both levels", _sleep_wake, _no_sleep),
)  # fmt: skip

#: Every scenario by name, in the order in which they run.
SCENARIOS = MappingProxyType({scenario.name: scenario for scenario in _SCENARIOS})
