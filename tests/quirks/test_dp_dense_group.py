"""vLLM takes no dense model as a rank of a data-parallel group with external load balancing."""

from __future__ import annotations

import pytest

DENSE = {"model_type": "qwen3"}
MOE = {"model_type": "qwen3_moe", "num_experts": 8}
ACTORS = {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": "actors"}}


def test_a_dense_model_on_actors_is_refused_with_the_strategy_that_works(plan_for):
    (refusal,) = plan_for(DENSE, ACTORS).refusals

    assert "only MoE models" in refusal.reason
    assert "parallel.dp_strategy: independent" in refusal.remedy
    assert "--disable dp-dense-group" in refusal.switch


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (MOE, ACTORS),
        (DENSE, {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": "engine"}}),
        (DENSE, {"engine": {"data_parallel_size": 2}}),
        (DENSE, {"parallel": {"dp_strategy": "actors"}}),
    ],
    ids=["a mixture", "one engine", "left open", "one rank"],
)
def test_what_vllm_takes_passes(plan_for, model, values):
    assert plan_for(model, values).refusals == []


def test_a_mixture_that_does_not_say_its_number_of_experts_is_not_refused_but_warned_of(plan_for):
    outcome = plan_for({"model_type": "acme_moe"}, ACTORS)

    assert outcome.state == "unknown"
    assert outcome.refusals == []
    assert "model.is_moe" in outcome.warnings[0]
