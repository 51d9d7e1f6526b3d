"""The expert-parallel size that the user names is the one that vLLM forms, or the run is refused."""

from __future__ import annotations

import pytest

MOE = {"model_type": "qwen3_moe", "num_experts": 8}


def values(dp: int, tp: int, ep: int, strategy: str | None) -> dict[str, object]:
    """A configuration."""
    engine = {"data_parallel_size": dp, "tensor_parallel_size": tp}
    return {"engine": engine, "parallel": {"dp_strategy": strategy, "expert_parallel_size": ep}}


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "strategy", "words"),
    [
        (2, 1, 4, "actors", "all DP x TP ranks share"),
        (2, 2, 2, "engine", "all DP x TP ranks share"),
        (2, 4, 2, "independent", "all TP ranks share"),
        (2, 1, 4, None, "is neither"),
        (1, 1, 2, None, "is neither"),
    ],
)
def test_a_size_that_vllm_does_not_form_is_refused_with_the_one_that_it_does(plan_for, dp, tp, ep, strategy, words):
    (refusal,) = plan_for(MOE, values(dp, tp, ep, strategy)).refusals

    assert words in refusal.reason
    assert "set parallel.expert_parallel_size to" in refusal.remedy
    assert "--disable ep-size" in refusal.switch


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "strategy"),
    [
        (2, 1, 2, "actors"),
        (2, 2, 4, "engine"),
        (2, 2, 2, "independent"),
        (2, 2, 2, None),
        (2, 2, 4, None),
        (1, 4, 4, None),
        (2, 2, 1, "actors"),
        (2, 1, 4, "independent"),  # another rule's
    ],
)
def test_a_size_that_vllm_forms_passes(plan_for, dp, tp, ep, strategy):
    assert plan_for(MOE, values(dp, tp, ep, strategy)).refusals == []
