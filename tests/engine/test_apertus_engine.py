"""One Apertus engine with real weights and without its quirk: a refit of the very same weights breaks it."""

from __future__ import annotations

import pytest_asyncio

from quirks_core import Registry, RunContext
from worker.refit import RefitScope


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(checkpoint, running):
    values = {"engine": {"load_format": "auto"}}
    async with running(checkpoint("apertus"), values, disable=["apertus-xielu-buffers"]) as started:
        yield started


async def test_xielu_buffers_are_lost_without_the_quirk_and_kept_with_it(worker, checkpoint, lab):
    """Quirk apertus-xielu-buffers, paired. The engine is its own reference: vLLM keeps xIELU in bfloat16."""
    trainer = lab.trainer(checkpoint("apertus"))
    scope_with_the_quirk = Registry.load().resolve(RunContext.gather(worker.config)).value("refit.scope")
    expected = await lab.generate(worker)

    await worker.refit_async(trainer)
    without = await lab.generate(worker)
    await worker.refit_async(trainer, RefitScope(scope_with_the_quirk))
    with_quirk = await lab.generate(worker)

    assert worker.plan.value("refit.scope") == "parameters"
    assert lab.share_of_equal_tokens(without, expected) < 0.5
    assert with_quirk == expected
