"""Samples of an engine without a tokenizer end where config.json says, if generation_config.json does not."""

from __future__ import annotations

import json

import pytest

SLOT = "sampling.stop_token_ids"
SKIPPED = {"engine.skip_tokenizer_init": True}
MODEL = {"model_type": "qwen3", "eos_token_id": 9}


@pytest.fixture
def generation_config(tmp_path):
    """Writes the file of that name into the folder of the model that is planned for."""

    def write(**values):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")

    return write


def test_the_end_of_config_json_is_added_to_what_was_typed(plan_for, generation_config):
    generation_config(temperature=0.6)

    assert plan_for(MODEL, SKIPPED).changes == {SLOT: [9]}
    assert sorted(plan_for(MODEL, {**SKIPPED, SLOT: [4]}).plan.value(SLOT)) == [4, 9]


def test_a_file_that_names_an_end_and_no_file_at_all_need_nothing(plan_for, generation_config):
    assert plan_for(MODEL, SKIPPED).state == "not_matched"  # vLLM takes config.json in its place
    generation_config(eos_token_id=[9, 8])

    assert plan_for(MODEL, SKIPPED).state == "not_matched"


@pytest.mark.parametrize("settings", [{}, {**SKIPPED, "sampling.ignore_eos": True}])
def test_with_a_tokenizer_and_where_nothing_is_to_end_a_sample_it_does_nothing(plan_for, generation_config, settings):
    generation_config()

    assert plan_for(MODEL, settings).state == "not_matched"
