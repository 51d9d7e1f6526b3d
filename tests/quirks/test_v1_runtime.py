"""V0 exists only before vLLM 0.11, and only for the synchronous engine."""

from __future__ import annotations

import pytest

LAST_WITH_V0 = "vllm==0.10.2"
SYNC = {"engine.async_engine": False}

#: The ways to ask for V0: settings, and the shell.
asking = pytest.mark.parametrize(
    ("asked", "environ"),
    [({"engine.runtime": "v0"}, {}), ({"env.NRL_VLLM_USE_V1": 0}, {}), ({}, {"NRL_VLLM_USE_V1": "0"})],
    ids=["runtime: v0", "env in the configuration", "NRL_VLLM_USE_V1=0"],
)


@asking
@pytest.mark.parametrize("version", [LAST_WITH_V0, "vllm==0.11.0rc1"])
def test_the_synchronous_engine_gets_v0_through_vllms_variable(plan_for, asked, environ, version):
    outcome = plan_for("qwen3", SYNC | asked, assume=[version], environ=environ)

    assert (outcome.changes, outcome.refusals) == ({"env.VLLM_USE_V1": "0"}, [])


@asking
def test_the_asynchronous_engine_is_refused_v0_with_the_remedy(plan_for, asked, environ):
    outcome = plan_for("qwen3", asked, assume=[LAST_WITH_V0], environ=environ)

    (refusal,) = outcome.refusals
    assert "asynchronous engine needs V1" in refusal.reason
    assert "engine.async_engine: false" in refusal.remedy
    assert outcome.changes == {}


@asking
@pytest.mark.parametrize("engine", [SYNC, {}], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("version", ["0.11.0", "0.32.0"])
def test_engines_without_v0_refuse_it_and_say_what_to_do(plan_for, asked, environ, engine, version):
    outcome = plan_for("qwen3", engine | asked, assume=[f"vllm=={version}"], environ=environ)

    (refusal,) = outcome.refusals
    assert "removed it in 0.11.0" in refusal.reason
    assert "unset NRL_VLLM_USE_V1 and set engine.runtime: v1" in refusal.remedy
    assert "0.10.2 or earlier" in refusal.remedy
    assert outcome.changes == {}


def test_a_source_build_that_cannot_be_placed_changes_nothing_and_warns(plan_for):
    outcome = plan_for("qwen3", {"engine.runtime": "v0"}, assume=["vllm==0.1.dev1+g123"])

    assert (outcome.adjustments, outcome.refusals) == ({}, [])
    assert any("cannot be decided" in warning for warning in outcome.warnings)


def test_a_variable_that_contradicts_the_wish_for_v0_is_refused(plan_for):
    settings = {**SYNC, "engine.runtime": "v0"}

    (refusal,) = plan_for("qwen3", settings, assume=[LAST_WITH_V0], environ={"VLLM_USE_V1": "1"}).refusals

    assert refusal.slot == "env.VLLM_USE_V1"
    assert "must be '0', but '1' was set explicitly" in refusal.reason


@pytest.mark.parametrize("environ", [{}, {"NRL_VLLM_USE_V1": "1"}])
def test_who_does_not_ask_for_v0_is_left_alone(plan_for, environ):
    assert plan_for("qwen3", assume=[LAST_WITH_V0], environ=environ).state == "not_matched"
