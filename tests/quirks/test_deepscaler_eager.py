"""DeepScaleR recipes run in eager mode unless they say otherwise."""

from __future__ import annotations

import pytest

QWEN2 = {"model_type": "qwen2"}


@pytest.mark.parametrize("name", ["DeepScaleR-1.5B-Preview", "my-deepscaler-run"])
def test_a_model_of_that_name_runs_in_eager_mode(plan_for, name):
    outcome = plan_for(QWEN2, name=name)

    assert outcome.changes == {"engine.enforce_eager": True}
    assert outcome.adjustments["engine.enforce_eager"].strength == "default"


@pytest.mark.parametrize("recipe", ["grpo-deepscaler-1.5b-8K", "DeepScaleR"])
def test_a_recipe_of_that_name_runs_in_eager_mode_whatever_the_model_is_called(plan_for, recipe):
    outcome = plan_for(QWEN2, {"recipe": recipe}, name="DeepSeek-R1-Distill-Qwen-1.5B")

    assert outcome.changes == {"engine.enforce_eager": True}


def test_a_recipe_that_sets_cuda_graphs_itself_wins(plan_for):
    outcome = plan_for(QWEN2, {"recipe": "deepscaler", "engine": {"enforce_eager": False}})

    assert outcome.adjustments["engine.enforce_eager"].status == "kept_user"
    assert outcome.plan.value("engine.enforce_eager") is False
    assert outcome.refusals == []


def test_other_recipes_keep_the_engine_s_choice(plan_for):
    outcome = plan_for(QWEN2, {"recipe": "grpo-math-1B"})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("engine.enforce_eager") is None


@pytest.mark.parametrize("switch", ["deepscaler-eager", "enforce_eager"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN2, {"recipe": "deepscaler"}, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("engine.enforce_eager") is None
