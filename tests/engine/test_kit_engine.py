"""The kit's fixtures on a real engine."""

from __future__ import annotations

import pytest


@pytest.mark.usefixtures("forked")
async def test_a_refitted_gemma4_is_right(quirk_lab, tiny_checkpoint, quirk_engine, lean):
    model = tiny_checkpoint("gemma4")
    trainer = quirk_lab.trainer(model)

    async with quirk_engine(model, lean()) as worker:
        await worker.refit_async(trainer)
        outcome = quirk_lab.same_tokens(await quirk_lab.greedy(worker), quirk_lab.reference(trainer))

    assert outcome.passed, f"{outcome.measure}: {outcome.got}, not {outcome.expected}"
