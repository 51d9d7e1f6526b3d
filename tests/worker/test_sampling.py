"""How tokens are sampled: the user's configuration with what quirks change."""

from __future__ import annotations

import pytest

from quirks_core import SLOTS, Default, Loaded, ModelFlag, Quirk, Require, RunContext, Severity, purpose, report
from quirks_core.resolve import resolve
from worker import GenerationConfig
from worker.vllm_adapter import planned_sampling


@pytest.fixture
def sampling(model_folder):
    """Plans one adjustment and gives the sampling that comes of it."""

    def make(adjustment, **values):
        config = GenerationConfig.parse({"model": str(model_folder), "sampling": values})
        quirk = Quirk(
            id="example",
            title="Something goes wrong",
            flag=ModelFlag.TOKENIZER,
            match=purpose("rollout"),
            adjustments=adjustment,
            severity=Severity.WRONG_OUTPUT,
            references=report("https://example.org/1"),
        )
        plan = resolve(RunContext.gather(config, environ={}), [Loaded(quirk, "dist", "1", "example")])
        return planned_sampling(config, plan)

    return make


def test_a_quirk_adds_stop_tokens_to_those_of_the_user(sampling):
    planned = sampling(Require("sampling.stop_token_ids", [107, 1]), stop_token_ids=[5])

    assert list(planned.stop_token_ids) == [1, 5, 107]


def test_a_quirk_changes_what_the_user_left_open_and_nothing_else(sampling):
    planned = sampling(Default("sampling.top_k", 20), temperature=0.5)

    assert (planned.top_k, planned.temperature) == (20, 0.5)


def test_the_users_temperature_wins_over_a_default(sampling):
    assert sampling(Default("sampling.temperature", 1.0), temperature=0.5).temperature == 0.5


def test_every_sampling_slot_is_a_key_of_the_configuration(model_folder):
    section = GenerationConfig.parse({"model": str(model_folder)}).sampling

    assert [slot for slot in SLOTS if slot.startswith("sampling.") and not hasattr(section, slot.partition(".")[2])] == []
