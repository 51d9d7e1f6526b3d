"""One Gemma-4 engine without two of its quirks: what goes wrong, and what each quirk would have changed."""

from __future__ import annotations

import pytest
import pytest_asyncio

from quirks_core import Registry, RunContext
from worker.refit import RefitScope

_TEMPERATURE = 0.5
_WITHOUT = ("gemma4-layer-scalar", "rollout-logprobs-processed")


@pytest.fixture(scope="module")
def trainer(checkpoint, lab):
    return lab.trainer(checkpoint("gemma4"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(checkpoint, running):
    async with running(checkpoint("gemma4"), {"sampling": {"temperature": _TEMPERATURE}}, disable=_WITHOUT) as started:
        yield started


@pytest.fixture(scope="module")
def scope_with_the_quirk(worker):
    return RefitScope(Registry.load().resolve(RunContext.gather(worker.config)).value("refit.scope"))


async def test_layer_scalar_is_garbage_without_the_quirk_and_right_with_it(worker, trainer, scope_with_the_quirk, lab):
    """Quirk gemma4-layer-scalar, paired: dummy load, then the refit that the plan says without and with the quirk."""
    expected = lab.reference(trainer)

    await worker.refit_async(trainer)
    without = await lab.generate(worker)
    await worker.refit_async(trainer, scope_with_the_quirk)
    with_quirk = await lab.generate(worker)

    assert worker.plan.value("refit.scope") == "parameters"
    assert lab.share_of_equal_tokens(without, expected) < 0.2
    assert lab.share_of_equal_tokens(with_quirk, expected) == 1.0


async def test_without_the_logprobs_quirk_rollout_logprobs_ignore_the_temperature(worker, trainer, scope_with_the_quirk, lab):
    """Quirk rollout-logprobs-processed, without: the other half of the pair runs on the Gemma-3 engine."""
    await worker.refit_async(trainer, scope_with_the_quirk)

    got = await lab.generate(worker, greedy=False)

    assert lab.largest_difference(got, lab.rescored(trainer, got, _TEMPERATURE)) > 0.1
    assert lab.largest_difference(got, lab.rescored(trainer, got)) < 1e-3
