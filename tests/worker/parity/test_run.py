"""What a parity run finds out before any engine starts."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from worker import GenerationConfig
from worker.lab.attribution.run import run as ablate
from worker.lab.parity.run import Options, ParityRun, run

UNLOADABLE = {"attn_implementation": "flash_attention_2"}  # which is not installed


@pytest.fixture
def model(tiny_checkpoint):
    return str(tiny_checkpoint("qwen3"))


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def start(*_):
        raise RuntimeError("an engine is started")

    monkeypatch.setattr("worker.engine.vllm_adapter.start_engine", start)
    monkeypatch.setattr("worker.engine.engine.in_force", start)


def configured(model, **values):
    return GenerationConfig.parse({"model": model, **values})


async def test_a_model_that_the_trainer_cannot_load_may_start(model):
    with pytest.raises(RuntimeError, match="an engine is started"):
        await run(configured(model, train=UNLOADABLE), Options())


def test_a_load_format_that_the_run_chooses_is_not_typed(model):
    plan = ParityRun(configured(model, train=UNLOADABLE, engine={"seed": 3}), Options()).plan

    assert plan.value("engine.load_format") == "auto"
    assert plan.context.typed == {"engine.seed", "train.attn_implementation"}


async def test_an_engine_from_dummy_weights_needs_the_trainers_model(model):
    with pytest.raises(UsageError, match=r"dummy, and transformers cannot load .* set engine\.load_format: auto"):
        await run(configured(model, train=UNLOADABLE, engine={"load_format": "dummy"}), Options())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenarios": ("cold_start",)}, "unknown scenario 'cold_start'; did you mean 'cold-start'"),
        ({"thresholds": ("foo=1",)}, "there is no metric 'foo'"),
        ({"profile": "peer"}, "there is no profile 'peer'"),
        ({"new_tokens": 64}, r"prompts 0 .* leave no room for 64 new tokens below engine\.max_model_len = 80"),
    ],
)
async def test_what_is_wrong_is_reported_at_once(model, options, message):
    with pytest.raises(UsageError, match=message):
        await run(configured(model, engine={"max_model_len": 80}), Options(**options))


async def test_a_setting_that_does_not_exist_is_reported_at_once(model):
    with pytest.raises(UsageError, match=r"no setting of that name: 'engine\.logprob_mode'"):
        await ablate(configured(model), Options(), settings=["engine.logprob_mode"])
