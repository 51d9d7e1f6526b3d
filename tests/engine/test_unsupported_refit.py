"""Models that vLLM 0.32 cannot refit without a quirk: the refit itself says so, not the next request."""

from __future__ import annotations

import pytest

from worker.errors import NotReadyError, RefitUnsupportedError

#: The quirks with which vLLM refits these models after all.
HEAD_BIAS, LOADER_NAME = "transformers-backend-head-bias", "unnamed-weight-loader"


async def test_a_refit_that_removes_a_tensor_fails_alone(lab):
    """Phi in vLLM's Transformers backend: a head's bias that the engine did not have when the reload began."""
    trainer = lab.trainer(lab.checkpoint("phi", seed=1))

    async with lab.worker(lab.checkpoint("phi"), disable=[HEAD_BIAS]) as worker:
        for _ in range(2):
            with pytest.raises(RefitUnsupportedError, match=r"removes lm_head\.bias.* engine\.load_format=auto"):
                await worker.refit_async(trainer)
            with pytest.raises(NotReadyError, match="further refits of this engine fail in the same way"):
                await lab.greedy(worker)
        assert worker.engine.alive


async def test_the_load_format_that_the_error_advises_avoids_it(lab):
    trainer = lab.trainer(lab.checkpoint("phi", seed=1))

    async with lab.worker(lab.checkpoint("phi"), {"engine": {"load_format": "auto"}}, disable=[HEAD_BIAS]) as worker:
        await worker.refit_async(trainer)
        outcome = lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))

    assert outcome.passed, outcome


async def test_a_reload_that_cannot_begin_keeps_the_weights(lab):
    """MiniMax-M2: one of its weights has a loader that vLLM's reload cannot wrap."""
    trainer = lab.trainer(lab.checkpoint("minimax_m2", seed=1))

    from_checkpoint = {"engine": {"load_format": "auto"}}
    async with lab.worker(lab.checkpoint("minimax_m2"), from_checkpoint, disable=[LOADER_NAME]) as worker:
        before = await lab.greedy(worker)
        with pytest.raises(RefitUnsupportedError, match=r"cannot reload this model: .*__name__") as caught:
            await worker.refit_async(trainer)
        assert "keeps the weights it had (version 'default') and generates with them; further refits" in str(caught.value)
        after = await lab.greedy(worker)

    tokens, logprobs = lab.same_tokens(after, before), lab.close_logprobs(after, before)
    assert (tokens.passed, logprobs.passed) == (True, True), (tokens, logprobs)
