"""What a parity run finds out before any engine starts."""

from __future__ import annotations

import pytest

from quirks_core.errors import UsageError
from quirks_core.testing import checkpoints
from worker import GenerationConfig
from worker.parity.run import Options, run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(checkpoints.build("qwen3", tmp_path_factory.mktemp("run")))


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def start(*_):
        raise RuntimeError("an engine is started")

    monkeypatch.setattr("worker.vllm_adapter.start_engine", start)
    monkeypatch.setattr("worker.engine.apply", start)


async def measured(model, values=None, **options):
    return await run(GenerationConfig.parse({"model": model, **(values or {})}), Options(**options))


UNLOADABLE = {"attn_implementation": "flash_attention_2"}  # which is not installed


async def test_a_model_that_the_trainer_cannot_load_is_no_reason_not_to_start(model):
    with pytest.raises(RuntimeError, match="an engine is started"):
        await measured(model, {"train": UNLOADABLE})


async def test_an_engine_from_dummy_weights_needs_the_trainers_model(model):
    with pytest.raises(UsageError, match=r"dummy, and transformers cannot load .* set engine\.load_format: auto"):
        await measured(model, {"train": UNLOADABLE, "engine": {"load_format": "dummy"}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenarios": ("cold_start",)}, "unknown scenario 'cold_start'; did you mean 'cold-start'"),
        ({"thresholds": ("foo=1",)}, "there is no metric 'foo'"),
        ({"profile": "peer"}, "there is no profile 'peer'"),
        (
            {"new_tokens": 1, "attribute": True, "settings": ("engine.logprob_mode",)},
            "no setting of that name: 'engine.logprob_mode'",
        ),
        ({"new_tokens": 64}, r"prompts 0 .* leave no room for 64 new tokens below engine\.max_model_len = 80"),
    ],
)
async def test_what_is_wrong_is_told_at_once(model, options, message):
    with pytest.raises(UsageError, match=message):
        await measured(model, {"engine": {"max_model_len": 80}}, **options)
