"""Models that vLLM 0.32 cannot refit: the refit itself says so, not the next request."""

from __future__ import annotations

import pytest

from worker.errors import NotReadyError, RefitUnsupportedError
from worker.testing import checkpoints
from worker.testing.lab import Lab


def _phi():
    from transformers import PhiConfig

    return PhiConfig(**{**checkpoints._SHARED, "num_key_value_heads": 2}, partial_rotary_factor=0.5)


def _minimax_m2():
    from transformers import MiniMaxM2Config

    # What vLLM reads beside transformers' fields; its CPU router knows no sigmoid, which released checkpoints have.
    own = {"rotary_dim": 32, "scoring_func": "softmax", "use_routing_bias": True, "use_qk_norm": True, "attention_bias": False}
    return MiniMaxM2Config(**checkpoints._SHARED, **own, head_dim=32, num_local_experts=4, num_experts_per_tok=2)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab that knows two further kinds of checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checkpoints._CONFIGS, "phi", _phi)
        patch.setitem(checkpoints._CONFIGS, "minimax_m2", _minimax_m2)
        yield Lab(tmp_path_factory.mktemp("unsupported"))


async def test_a_refit_that_removes_a_tensor_fails_every_time_and_the_engine_stays_alive(lab):
    """Phi in vLLM's Transformers backend: a head's bias that the engine did not have when the reload began."""
    trainer = lab.trainer(lab.checkpoint("phi", seed=1))

    async with lab.worker(lab.checkpoint("phi")) as worker:
        for _ in range(2):
            with pytest.raises(RefitUnsupportedError, match=r"removes lm_head\.bias.* engine\.load_format=auto"):
                await worker.refit_async(trainer)
            with pytest.raises(NotReadyError, match="further refits of this engine fail in the same way"):
                await lab.greedy(worker)
        assert worker.engine.alive


async def test_the_load_format_that_the_error_advises_avoids_it(lab):
    trainer = lab.trainer(lab.checkpoint("phi", seed=1))

    async with lab.worker(lab.checkpoint("phi"), {"engine": {"load_format": "auto"}}) as worker:
        await worker.refit_async(trainer)
        outcome = lab.same_tokens(await lab.greedy(worker), lab.reference(trainer))

    assert outcome.passed, outcome


async def test_a_reload_that_cannot_begin_leaves_the_engine_with_the_weights_it_had(lab):
    """MiniMax-M2: one of its weights has a loader that vLLM's reload cannot wrap."""
    trainer = lab.trainer(lab.checkpoint("minimax_m2", seed=1))

    async with lab.worker(lab.checkpoint("minimax_m2"), {"engine": {"load_format": "auto"}}) as worker:
        before = await lab.greedy(worker)
        with pytest.raises(RefitUnsupportedError, match=r"cannot reload this model: .*__name__") as caught:
            await worker.refit_async(trainer)
        assert "keeps the weights it had (version 'default') and generates with them; further refits" in str(caught.value)
        after = await lab.greedy(worker)

    assert after == before
