"""VLLM_DP_* variables are for synchronous engines."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
VARIABLES = ["VLLM_DP_SIZE", "VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_each_of_them_is_refused_from_the_shell_and_from_the_configuration(plan_for, variable):
    for values, environ in (({}, {variable: "1"}), ({"env": {variable: "1"}}, {})):
        (refusal,) = plan_for(QWEN3, values, environ=environ).refusals

        assert "without a coordinator" in refusal.reason
        assert variable in refusal.remedy
        assert "engine.data_parallel_size" in refusal.remedy
        assert "--disable dp-environment" in refusal.switch


@pytest.mark.parametrize(
    ("values", "environ"),
    [({}, {}), ({}, {"VLLM_RAY_DP_PACK_STRATEGY": "span"}), ({"engine": {"async_engine": False}}, {"VLLM_DP_SIZE": "2"})],
    ids=["none", "another variable", "the synchronous engine"],
)
def test_other_variables_and_the_synchronous_engine_pass(plan_for, values, environ):
    assert plan_for(QWEN3, values, environ=environ).refusals == []
