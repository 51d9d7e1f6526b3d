"""Runs scenarios on a running engine and compares their metrics with thresholds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quirks_core.base.errors import QuirksError, UsageError, nearest
from worker.errors import EngineDiedError
from worker.lab.parity.metrics import Decode, measured
from worker.lab.parity.records import OLD, Notify, Result, Sample
from worker.lab.parity.scenarios import SCENARIOS, Scenario
from worker.lab.parity.session import Session
from worker.lab.parity.thresholds import Threshold, judge


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Returns scenarios in the order in which they run; if none is named, all that need not be.

    Raises:
        UsageError: There is no such scenario.
    """
    if unknown := [f"{name!r}{nearest(name, SCENARIOS)}" for name in names if name not in SCENARIOS]:
        raise UsageError(f"unknown scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return tuple(name for name, scenario in SCENARIOS.items() if name in names or not (names or scenario.by_name))


async def measure(
    session: Session,
    names: Sequence[str],
    thresholds: Sequence[Threshold],
    *,
    epsilon: float = 0.2,
    notify: Notify = lambda _: None,
    done: Callable[[Result], object] = lambda _: None,
) -> list[Result]:
    """Runs scenarios one after the other.

    Args:
        session: The engine and the trainer.
        names: Names of scenarios.
        thresholds: The limits of the metrics.
        epsilon: Ratios outside of 1 ± epsilon count as clipped.
        notify: Called before each scenario.
        done: Called with each result as soon as it is known.

    Returns:
        A result for each, also for those that are skipped or failed.

    Raises:
        EngineDiedError: The engine died, so the remaining scenarios cannot run.
    """
    results = []
    for name in chosen(names):
        notify(name)
        results.append(await _run(session, SCENARIOS[name], thresholds, epsilon))
        done(results[-1])
    return results


def judged(
    result: Result, samples: Sequence[Sample], thresholds: Sequence[Threshold], *, epsilon: float, decode: Decode | None
) -> Result:
    """Returns a result with these samples, their metrics and verdicts."""
    found = measured(samples, epsilon=epsilon, decode=decode)
    update = {**found._asdict(), "verdicts": judge(found.metrics, thresholds), "samples": tuple(samples)}
    return result.model_copy(update=update)


async def _run(session: Session, scenario: Scenario, thresholds: Sequence[Threshold], epsilon: float) -> Result:
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
    found = empty.model_copy(update=facts)
    return judged(found, samples, thresholds, epsilon=epsilon, decode=session.prompts.decode)
