"""DeepScaleR recipes run in eager mode unless they say otherwise."""

from __future__ import annotations

import pytest

SLOT = "engine.enforce_eager"


@pytest.mark.parametrize(
    ("name", "recipe", "state"),
    [
        ("DeepScaleR-1.5B-Preview", None, "active"),
        ("my-deepscaler-run", None, "active"),
        ("DeepSeek-R1-Distill-Qwen-1.5B", "grpo-deepscaler-1.5b-8K", "active"),
        ("DeepSeek-R1-Distill-Qwen-1.5B", "DeepScaleR", "active"),
        ("DeepSeek-R1-Distill-Qwen-1.5B", "grpo-math-1B", "not_matched"),
    ],
)
def test_a_model_or_recipe_of_that_name_runs_in_eager_mode(plan_for, name, recipe, state):
    outcome = plan_for("qwen2", {"recipe": recipe}, name=name)

    assert outcome.state == state
    assert outcome.changes == ({SLOT: True} if state == "active" else {})


def test_a_recipe_that_sets_cuda_graphs_itself_wins(plan_for):
    outcome = plan_for("qwen2", {"recipe": "deepscaler", SLOT: False})

    assert (outcome.statuses, outcome.plan.value(SLOT)) == ({SLOT: "kept_user"}, False)
