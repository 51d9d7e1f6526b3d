"""The situations in which rollout and trainer are compared.

A scenario makes samples with the running engine and states the other side: the trainer, or the engine itself on another path.
It corrects nothing, and leaves no request behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quirks_core.base.errors import QuirksError
from quirks_core.configuration.sections import SamplingSection
from worker.engine import vllm_adapter
from worker.errors import RefitError
from worker.lab.parity.records import NEW, OLD, Sample
from worker.lab.parity.session import Session, prefilled

#: Temperatures other than 1 that are measured, besides the configured one: a sharper and a flatter distribution.
_TEMPERATURES = (0.7, 1.3)
#: Pairs of top-p and top-k.
_TRUNCATIONS = ((0.9, -1), (1.0, 20), (0.9, 20))
#: Tokens that a request has generated when new weights arrive, and the fewest that it generates afterwards.
_BEFORE, _AFTER = 8, 64
#: How many long prompts are sent at once.
_LONG_ROWS = 3


@dataclass(frozen=True, slots=True)
class Observed:
    """The output of a scenario: samples (the trainer must still score those without ``trainer``) and further facts."""

    samples: list[Sample]
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation."""

    name: str  #: its name on the command line
    title: str  #: what it tests, in one line
    #: makes the samples; the engine has the checkpoint's weights when it begins
    observe: Callable[[Session], Awaitable[Observed]]
    concern: Callable[[Session], str] = lambda _: ""  #: returns why it does not apply to a session; empty if it does
    counts: Callable[[Session], bool] = lambda _: True  #: whether a crossed threshold counts, given how the run is configured
    needs_trainer: bool = True  #: it cannot run with the engine alone


# ---- with the checkpoint's weights


async def _cold_start(session: Session) -> Observed:
    return Observed(await _each(session, [{}]))


async def _temperature(session: Session) -> Observed:
    configured = session.sampling.temperature
    temperatures = dict.fromkeys((*((configured,) if configured not in (0, 1) else ()), *_TEMPERATURES))
    return Observed(
        await _each(session, [{"note": f"temperature {value:g}", "sampling": {"temperature": value}} for value in temperatures])
    )


async def _top_p_top_k(session: Session) -> Observed:
    ways = [
        {"note": f"top_p {top_p:g}, top_k {top_k}", "sampling": {"temperature": 1.0, "top_p": top_p, "top_k": top_k}}
        for top_p, top_k in _TRUNCATIONS
    ]
    return Observed(await _each(session, ways))


async def _data_parallel(session: Session) -> Observed:
    ranks = _ranks(session)
    return Observed(await _each(session, [{"note": f"rank {rank}", "rank": rank} for rank in range(ranks)]), {"ranks": ranks})


async def _decode_prefill(session: Session) -> Observed:
    samples = await _each(session, [{"sampling": {"temperature": 1.0}}])
    rows = await prefilled(session.worker, [(sample.prompt, sample.tokens) for sample in samples])
    return Observed([_with_trainer(sample, row) for sample, row in zip(samples, rows, strict=True)])


async def _prefix_cache(session: Session) -> Observed:
    rows = session.prompts.long(_cached_length(session), _LONG_ROWS)
    missed, _ = await session.generate(rows, rank=_one_rank(session), note="miss")
    hit, cached = await session.generate(rows, rank=_one_rank(session), note="hit")
    if not cached:
        raise QuirksError("no token of a prompt came from the prefix cache the second time, so the scenario shows nothing")
    notes = {"prompt tokens": sum(map(len, rows)), "from the prefix cache": cached}
    if session.trainer is not None:
        return Observed([*missed, *hit], notes)
    return Observed([_against(one, other) for one, other in zip(hit, missed, strict=True)], notes)


async def _long_context(session: Session) -> Observed:
    window = session.worker.plan.context.loaded.text_config.get("sliding_window")
    length = longest = _longest(session)
    if isinstance(window, int) and window > 0:
        length = min(longest, 2 * window)
    samples, _ = await session.generate(session.prompts.long(length, _LONG_ROWS))
    return Observed(samples, {"prompt length": length, "sliding window": window or "none"})


# ---- with weights that change


async def _after_refit(session: Session) -> Observed:
    rows = session.prompts.long(_cached_length(session), _LONG_ROWS) if not _no_long_prompts(session) else session.prompts.rows
    # A prefix cache has seen the prompts under the old weights.
    await session.generate(rows, rank=_one_rank(session))
    await session.refit(NEW)
    samples, cached = await session.generate(rows, rank=_one_rank(session))
    await session.hold(OLD)
    return Observed(samples, {"from the prefix cache": cached, **await _power(session, samples)})


def _in_flight(clear_cache: bool) -> Callable[[Session], Awaitable[Observed]]:
    async def observe(session: Session) -> Observed:
        room = session.max_model_len - max(map(len, session.prompts.rows))
        for times in (4, 8, 16):  # on a busy machine the first requests may end before the update begins
            new_tokens = min(room, max(_BEFORE + _AFTER, times * session.sampling.max_new_tokens))
            sampling = _sampling(session, max_new_tokens=new_tokens)
            async with session.under_way(session.prompts.rows, sampling, _BEFORE) as generating:
                await session.refit(NEW, clear_cache=clear_cache)
                samples, _ = await generating
            await session.hold(OLD)
            after = sum(end - start for sample in samples for label, start, end in sample.scoring.weights if label == NEW)
            if after:
                notes = {"tokens under the new weights": after, "of": sum(len(sample.tokens) for sample in samples)}
                return Observed(samples, notes)
        raise RefitError(
            f"all requests had generated their {new_tokens} tokens before the new weights arrived; generate more (--tokens)"
        )

    return observe


async def _sleep_wake(session: Session) -> Observed:
    await session.worker.sleep_async(level=1)
    await session.worker.wake_up_async()
    kept, _ = await session.generate(note="level 1")
    await session.worker.sleep_async(level=2)
    await session.worker.wake_up_async(tags=["weights"])
    await session.refit(OLD)
    await session.worker.wake_up_async(tags=["kv_cache"])
    dropped, _ = await session.generate(note="level 2")
    return Observed([*kept, *dropped])


# ---- what they share


async def _each(session: Session, ways: Iterable[dict[str, Any]]) -> list[Sample]:
    """Generates from all prompts in each of several ways: arguments of `Session.generate`, and what is sampled otherwise."""
    found: list[Sample] = []
    for way in ways:
        samples, _ = await session.generate(**{**way, "sampling": _sampling(session, **way.get("sampling", {}))})
        found += samples
    return found


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
    """Compares a sample with another run of the same prompt, up to the first token that differs."""
    pairs = zip(one.tokens, other.tokens, strict=True)
    return _with_trainer(one, other.rollout[: next((index for index, (a, b) in enumerate(pairs) if a != b), len(one.tokens))])


def _with_trainer(sample: Sample, logprobs: tuple[float, ...]) -> Sample:
    """Uses logprobs of the engine itself in the trainer's place, for as many tokens as it has."""
    end = len(logprobs)
    return sample.model_copy(update={"tokens": sample.tokens[:end], "rollout": sample.rollout[:end], "trainer": logprobs})


def _sampling(session: Session, **values: Any) -> SamplingSection:
    return session.sampling.model_copy(update=values)


def _longest(session: Session) -> int:
    return session.max_model_len - session.sampling.max_new_tokens - 1


def _cached_length(session: Session) -> int:
    """Prompts of two whole blocks and a half, if they fit: only whole blocks are reused."""
    return min(_longest(session), 2 * session.block_size + session.block_size // 2)


def _ranks(session: Session) -> int:
    return int(session.worker.plan.value("engine.data_parallel_size") or 1)


def _one_rank(session: Session) -> int | None:
    """Data-parallel ranks have separate caches, so both requests must go to the same rank."""
    return 0 if _ranks(session) > 1 else None


def _no_prefix_cache(session: Session) -> str:
    if not session.llm.vllm_config.cache_config.enable_prefix_caching:
        return "engine.enable_prefix_caching is off"
    return _no_long_prompts(session)


def _no_long_prompts(session: Session) -> str:
    if _cached_length(session) > session.block_size:
        return ""
    needed = session.block_size + session.sampling.max_new_tokens + 2
    return (
        f"engine.max_model_len = {session.max_model_len} leaves no room for a prompt above the KV cache's block of "
        f"{session.block_size} tokens; set it to at least {needed}"
    )


def _no_ranks(session: Session) -> str:
    return "" if _ranks(session) > 1 else "engine.data_parallel_size is 1"


def _no_sleep(session: Session) -> str:
    if session.worker.plan.context.platform == "cpu":
        return "vLLM's CPU platform cannot sleep"
    return "" if session.worker.plan.value("engine.enable_sleep_mode") else "engine.enable_sleep_mode is off"


def _no_versions(_: Session) -> str:
    return "" if vllm_adapter.labels_tokens() else "this vLLM does not report which weights generated a token (0.32 does)"


def _in_flight_scenario(name: str, what: str, clear_cache: bool) -> Scenario:
    def counts(session: Session) -> bool:
        return bool(session.worker.plan.value("refit.clear_cache")) is clear_cache

    title = f"new weights while requests run, their KV cache {what}"
    return Scenario(name, title, _in_flight(clear_cache), _no_versions, counts)


_SCENARIOS = (
    Scenario("cold-start", "the engine after its start, before any update", _cold_start),
    Scenario("temperature", "sampled at temperatures other than 1", _temperature),
    Scenario(
        "top-p-top-k", "sampled from a part of the vocabulary; the trainer masks its logits in the same way", _top_p_top_k
    ),
    Scenario("decode-prefill", "the engine's own tokens, computed again as a prompt", _decode_prefill, needs_trainer=False),
    Scenario(
        "prefix-cache", "the same prompts, found in the prefix cache", _prefix_cache, _no_prefix_cache, needs_trainer=False
    ),
    Scenario("long-context", "prompts beyond a sliding window, or as long as fits", _long_context),
    Scenario("data-parallel", "every data-parallel rank", _data_parallel, _no_ranks),
    Scenario("after-refit", "new weights, and prompts that the engine has already seen with the old weights", _after_refit),
    _in_flight_scenario("in-flight-cleared", "dropped", clear_cache=True),
    _in_flight_scenario("in-flight-kept", "kept", clear_cache=False),
    Scenario("sleep-wake", "after sleep and wake-up, both levels", _sleep_wake, _no_sleep),
)

#: Every scenario by name, in the order in which they run.
SCENARIOS = MappingProxyType({scenario.name: scenario for scenario in _SCENARIOS})
