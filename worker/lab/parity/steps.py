"""Parity at each of several steps of a training: new weights, a refit, rollouts, and the trainer's logprobs of them."""

from __future__ import annotations

import time

from quirks_core.base.errors import QuirksError
from worker.errors import EngineDiedError
from worker.lab.parity.measure import judged
from worker.lab.parity.records import OLD, Notify, Result
from worker.lab.parity.scenarios import power
from worker.lab.parity.session import Session
from worker.lab.parity.thresholds import Threshold

#: Noise that stands for a step of the optimizer, in standard deviations of each parameter's own values.
STEP = 0.01
_TITLE = f"rollouts of new weights: each step adds noise of {STEP:.0%} to every parameter"


async def measure_steps(
    session: Session, steps: int, thresholds: tuple[Threshold, ...], *, epsilon: float, notify: Notify = lambda _: None
) -> list[Result]:
    """Measures parity step by step.

    Args:
        session: The engine and the trainer, which must be there.
        steps: How many.
        thresholds: The limits of the metrics.
        epsilon: Ratios outside of 1 ± epsilon count as clipped.
        notify: Called before each step.

    Returns:
        A result for each step; the last one is that of a step that failed.

    Raises:
        EngineDiedError: The engine died.
    """
    results: list[Result] = []
    before = OLD
    for number in range(1, steps + 1):
        label = f"step {number}"
        notify(label)
        empty, begun = Result(scenario=label, title=_TITLE), time.monotonic()
        try:
            results.append(await _step(session, label, before, number, empty, thresholds, epsilon))
        except EngineDiedError:
            raise
        except (QuirksError, TimeoutError) as error:
            return [*results, empty.model_copy(update={"status": "failed", "reason": str(error) or "it took too long"})]
        results[-1] = results[-1].model_copy(update={"seconds": time.monotonic() - begun})
        if session.trainer is not None:
            session.trainer.forget(before)
        before = label
    return results


async def _step(
    session: Session, label: str, before: str, seed: int, empty: Result, thresholds: tuple[Threshold, ...], epsilon: float
) -> Result:
    if session.trainer is None:
        raise QuirksError("no trainer's model was loaded, so there is nothing to compare with")
    session.trainer.perturb(label, scale=STEP, since=before, seed=seed)
    await session.refit(label)
    samples, _ = await session.generate()
    scored = await session.scored(samples)
    changed = empty.model_copy(update={"notes": await power(session, samples, before, label)})
    return judged(changed, scored, thresholds, epsilon=epsilon, decode=session.prompts.decode)
