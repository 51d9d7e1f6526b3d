"""What a parity run finds out before any engine starts, and what it keeps for the next one."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from worker import GenerationConfig
from worker.lab.attribution.run import run as ablate
from worker.lab.kit import checkpoints
from worker.lab.parity.records import Result
from worker.lab.parity.run import Options, ParityRun, run
from worker.lab.parity.store import Store, write_text

UNLOADABLE = {"attn_implementation": "flash_attention_2"}  # which is not installed


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(checkpoints.build("qwen3", tmp_path_factory.mktemp("run")))


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def start(*_):
        raise RuntimeError("an engine is started")

    monkeypatch.setattr("worker.engine.vllm_adapter.start_engine", start)
    monkeypatch.setattr("worker.engine.engine.in_force", start)


def configured(model, **values):
    return GenerationConfig.parse({"model": model, **values})


async def test_a_model_that_the_trainer_cannot_load_is_no_reason_not_to_start(model):
    with pytest.raises(RuntimeError, match="an engine is started"):
        await run(configured(model, train=UNLOADABLE), Options())


def test_a_load_format_that_the_run_chooses_is_not_said_to_be_typed(model):
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


# ---- what is kept

RUN = {"plan": "abc", "tokens": 32}
RESULT = Result(
    scenario="cold-start", title="the engine after its start, before any update", metrics={"max_abs_delta": float("nan")}
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "deep" / "state.json"


def test_a_piece_is_found_again(file):
    Store(file, RUN).put("cold-start", RESULT)

    again = Store(file, RUN)

    assert again.found == 1
    found = again.get("cold-start", Result)
    assert (found.scenario, str(found.metrics["max_abs_delta"])) == ("cold-start", "nan")
    assert again.get("temperature", Result) is None


def test_runs_that_differ_keep_their_results_side_by_side(file):
    first = Store(file, RUN)
    first.put("cold-start", RESULT)

    other = Store(file, {**RUN, "tokens": 64})
    other.put("temperature", RESULT)

    assert other.found == 0
    assert Store(file, RUN).get("cold-start", Result) is not None
    assert Store(file, {**RUN, "tokens": 64}).get("temperature", Result) is not None


def test_a_failed_write_leaves_only_the_old_file(file):
    file.mkdir(parents=True)

    with pytest.raises(UsageError, match="cannot be written"):
        write_text(file, "new")

    assert list(file.parent.iterdir()) == [file]
