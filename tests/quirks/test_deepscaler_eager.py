"""DeepScaleR recipes run without Inductor, and with CUDA graphs, unless they say otherwise."""

from __future__ import annotations

import pytest

SLOT = "engine.compilation_config"


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
def test_a_model_or_recipe_of_that_name_runs_without_inductor(plan_for, name, recipe, state):
    outcome = plan_for("qwen2", {"recipe": recipe}, name=name)

    assert outcome.state == state
    assert outcome.changes == ({f"{SLOT}.backend": "eager"} if state == "active" else {})


def test_a_recipe_that_sets_the_backend_itself_wins(plan_for):
    outcome = plan_for("qwen2", {"recipe": "deepscaler", SLOT: {"backend": "inductor", "cudagraph_mode": "NONE"}})

    assert outcome.statuses == {f"{SLOT}.backend": "kept_user"}
    assert outcome.plan.value(SLOT) == {"backend": "inductor", "cudagraph_mode": "NONE"}


def test_eager_execution_that_a_recipe_asks_for_stays(plan_for):
    assert plan_for("qwen2", {"recipe": "deepscaler", "engine.enforce_eager": True}).plan.value("engine.enforce_eager") is True
