"""The contract of a trainer and its engine, as plans have it."""

from __future__ import annotations

import pytest

from quirks_core.plan.contract import Contract


def test_a_plan_lays_down_the_engine_s_side(make_context, make_plan):
    def laid_down(**values):
        settings = {f"engine.{name}": value for name, value in values.items()}
        plan = make_plan(context=make_context(settings={"sampling.temperature": 0.7, **settings}))
        return plan, Contract.of(plan)

    plan, contract = laid_down(dtype="float16", head_dtype="model")
    assert (contract.plan, contract.dtype, contract.head_dtype) == (plan.digest, "float16", "float16")
    assert (contract.temperature, contract.top_p, contract.adapters, contract.versions["vllm"]) == (0.7, None, False, "0.32.0")
    other_plan, other = laid_down(dtype="float16", head_dtype="float32", enable_lora=True)
    assert contract.differences(other) == {
        "plan": (plan.digest, other_plan.digest),
        "head_dtype": ("float16", "float32"),
        "adapters": (False, True),
    }
    assert contract.digest == Contract.of(plan).digest != other.digest


@pytest.mark.parametrize(
    ("mine", "theirs", "names"),
    [
        ({"dtype": "float16"}, {"dtype": "bfloat16"}, {"dtype"}),
        ({"dtype": "float16"}, {}, set()),  # nobody knows
        ({"top_k": -1}, {"top_k": 0}, set()),
        ({"logprobs": "raw_logprobs"}, {"logprobs": "processed_logprobs"}, {"logprobs"}),
        (
            {"logprobs": "raw_logprobs", "temperature": 1.0, "top_p": 1.0, "top_k": 0},
            {"logprobs": "processed_logprobs"},
            set(),
        ),
        ({"versions": {"vllm": "0.32.0", "torch": "2.13.0"}}, {"versions": {"vllm": "0.33.0"}}, {"vllm"}),
    ],
)
def test_what_both_sides_know_must_be_the_same(mine, theirs, names):
    base = {"versions": {}}
    here, there = Contract(**base | mine), Contract(**base | theirs)

    assert here.differences(there).keys() == names
    assert there.differences(here).keys() == names
