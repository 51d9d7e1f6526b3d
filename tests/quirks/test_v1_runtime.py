"""V0 exists only before vLLM 0.11, and only for the synchronous engine."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
LAST_WITH_V0 = ["vllm==0.10.2"]
SYNC = {"async_engine": False}

#: The two ways to ask for V0: values of the configuration's ``engine`` section, and the environment.
asking = pytest.mark.parametrize(
    ("engine", "environ"), [({"runtime": "v0"}, {}), ({}, {"NRL_VLLM_USE_V1": "0"})], ids=["runtime: v0", "NRL_VLLM_USE_V1=0"]
)


@asking
def test_the_synchronous_engine_gets_v0_through_vllm_s_variable(plan_for, engine, environ):
    outcome = plan_for(QWEN3, {"engine": {**SYNC, **engine}}, assume=LAST_WITH_V0, environ=environ)

    assert outcome.changes == {"env.VLLM_USE_V1": "0"}
    assert outcome.refusals == []


@asking
def test_the_asynchronous_engine_is_refused_v0_with_the_remedy(plan_for, engine, environ):
    outcome = plan_for(QWEN3, {"engine": engine}, assume=LAST_WITH_V0, environ=environ)

    (refusal,) = outcome.refusals
    assert "asynchronous engine needs V1" in refusal.reason
    assert "engine.async_engine: false" in refusal.remedy
    assert "--disable v1-runtime" in refusal.switch
    assert outcome.changes == {}


@asking
@pytest.mark.parametrize("sync", [SYNC, {}], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("version", ["0.11.0", "0.32.0"])
def test_engines_without_v0_refuse_it_and_say_what_to_do(plan_for, engine, environ, sync, version):
    outcome = plan_for(QWEN3, {"engine": {**sync, **engine}}, assume=[f"vllm=={version}"], environ=environ)

    (refusal,) = outcome.refusals
    assert "removed it in 0.11.0" in refusal.reason
    assert "unset NRL_VLLM_USE_V1 and set engine.runtime: v1" in refusal.remedy
    assert "0.10.2 or earlier" in refusal.remedy
    assert outcome.changes == {}


def test_a_pre_release_of_the_engine_without_v0_counts_as_having_it(plan_for):
    outcome = plan_for(QWEN3, {"engine": {**SYNC, "runtime": "v0"}}, assume=["vllm==0.11.0rc1"])

    assert outcome.changes == {"env.VLLM_USE_V1": "0"}


def test_a_source_build_that_cannot_be_placed_changes_nothing_and_warns(plan_for):
    outcome = plan_for(QWEN3, {"engine": {"runtime": "v0"}}, assume=["vllm==0.1.dev1+g123"])

    assert outcome.adjustments == {}
    assert outcome.refusals == []
    assert any("cannot be decided" in warning for warning in outcome.warnings)


def test_a_variable_that_contradicts_the_wish_for_v0_is_refused(plan_for):
    engine = {**SYNC, "runtime": "v0"}

    outcome = plan_for(QWEN3, {"engine": engine}, assume=LAST_WITH_V0, environ={"VLLM_USE_V1": "1"})

    (refusal,) = outcome.refusals
    assert refusal.slot == "env.VLLM_USE_V1"
    assert "must be '0', but '1' was set explicitly" in refusal.reason


def test_a_wish_in_the_configuration_s_env_section_counts_as_much(plan_for):
    outcome = plan_for(QWEN3, {"engine": SYNC, "env": {"NRL_VLLM_USE_V1": 0}}, assume=LAST_WITH_V0)

    assert outcome.changes == {"env.VLLM_USE_V1": "0"}


@pytest.mark.parametrize("environ", [{}, {"NRL_VLLM_USE_V1": "1"}])
def test_who_does_not_ask_for_v0_is_left_alone(plan_for, environ):
    outcome = plan_for(QWEN3, assume=LAST_WITH_V0, environ=environ)

    assert outcome.state == "not_matched"


@pytest.mark.parametrize("switch", ["v1-runtime", "runtime"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, {"engine": {"runtime": "v0"}}, assume=["vllm==0.32.0"], disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
