"""Runs scenarios on a running engine and compares their metrics with thresholds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quirks_core.base.errors import QuirksError, UsageError, nearest
from worker.engine import vllm_adapter
from worker.errors import EngineDiedError
from worker.lab.parity.metrics import Decode, measured
from worker.lab.parity.records import OLD, Notify, Result, Sample, worst_level
from worker.lab.parity.scenarios import SCENARIOS, Scenario
from worker.lab.parity.session import Session
from worker.lab.parity.thresholds import Threshold, judge, told_from_rounding
from worker.lab.parity.trainer import Trainer, TrainerOptions

#: Scenarios that compare the engine with itself, so that the trainer does not affect them.
WITHOUT_TRAINER = frozenset({"decode-prefill"})


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Returns scenarios in the order in which they run; if none is named, all that need not be.

    Raises:
        UsageError: There is no such scenario.
    """
    if unknown := [f"{name!r}{nearest(name, SCENARIOS)}" for name in names if name not in SCENARIOS]:
        raise UsageError(f"unknown scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return tuple(name for name, scenario in SCENARIOS.items() if name in names or not names)


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares the samples of a result with thresholds, and a crossed one with the rounding of both sides."""

    thresholds: Sequence[Threshold]
    decode: Decode  #: turns token ids into text
    trainer: Trainer | None = None  #: the trainer's model; without it, nothing is told from rounding
    options: TrainerOptions = field(default_factory=TrainerOptions)  #: how it computes
    dtype: str = ""  #: what the engine computes in

    def judged(self, result: Result, samples: Sequence[Sample]) -> Result:
        """Returns a result with these samples, their metrics and verdicts."""
        found = measured(samples, decode=self.decode)
        verdicts, rounding = judge(found.metrics, self.thresholds), {}
        if worst_level(verdicts) == "fail" and self.trainer is not None and result.scenario not in WITHOUT_TRAINER:
            rounding = rounding_of(self.trainer, self.options, self.dtype, samples)
            verdicts = told_from_rounding(verdicts, found.metrics, rounding)
        update = {**found._asdict(), "verdicts": verdicts, "rounding": rounding, "samples": tuple(samples)}
        return result.model_copy(update=update)


def rounding_of(trainer: Trainer, options: TrainerOptions, dtype: str, samples: Sequence[Sample]) -> dict[str, float]:
    """Measures the difference that rounding alone makes: of either side's dtypes against float32, as if independent.

    Args:
        trainer: The trainer's model; it also stands for the engine's.
        options: How the trainer has computed the samples' logprobs.
        dtype: What the engine computes in.
        samples: The samples, scored.

    Returns:
        The metrics ``mean_abs_delta`` and ``kl_k3``; nothing if both sides are in float32.
    """
    exact = replace(options, dtype="float32", autocast=None, head_dtype=None)
    if dtype == "float32" and (options.dtype, options.autocast) == ("float32", None):
        return {}
    right = trainer.score(samples, exact)
    sides = (samples, trainer.score(samples, replace(exact, dtype=dtype)))
    found = [
        measured([one.model_copy(update={"rollout": two.trainer}) for one, two in zip(side, right, strict=True)]).metrics
        for side in sides
    ]
    mean = math.hypot(*(metrics["mean_abs_delta"] for metrics in found))
    return {"mean_abs_delta": mean, "kl_k3": sum(metrics["kl_k3"] for metrics in found)}


async def measure(
    session: Session,
    names: Sequence[str],
    thresholds: Sequence[Threshold],
    *,
    notify: Notify = lambda _: None,
) -> list[Result]:
    """Runs scenarios one after the other.

    Raises:
        EngineDiedError: The engine died, so the remaining scenarios cannot run.
    """
    dtype = vllm_adapter.model_dtype(session.llm)
    judging = Judge(thresholds, session.prompts.decode, session.trainer, session.trainer_options, dtype)
    results = []
    for name in chosen(names):
        notify(name)
        results.append(await _run(session, SCENARIOS[name], judging))
    return results


async def _run(session: Session, scenario: Scenario, judging: Judge) -> Result:
    begun = time.monotonic()
    empty = Result(scenario=scenario.name, title=scenario.title)
    without = "no trainer's model to compare with" if scenario.needs_trainer and session.trainer is None else ""
    if reason := without or scenario.concern(session):
        return empty.model_copy(update={"status": "skipped", "reason": reason})
    try:
        await session.hold(OLD)
        observed = await scenario.observe(session)
        waiting = [sample for sample in observed.samples if not sample.trainer]
        scored = iter(await session.scored(waiting) if waiting else ())
    except EngineDiedError:
        raise
    except (QuirksError, TimeoutError) as error:
        return empty.model_copy(update={"status": "failed", "reason": str(error) or "it took too long"})
    samples = [sample if sample.trainer else next(scored) for sample in observed.samples]
    facts = {"gates": scenario.counts(session), "seconds": time.monotonic() - begun, "notes": observed.notes}
    return await asyncio.to_thread(judging.judged, empty.model_copy(update=facts), samples)
