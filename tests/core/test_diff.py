"""What differs between two plans: everything that matters, nothing else, and from either side the same."""

from __future__ import annotations

from quirks_core import Affected, Default
from quirks_core.facts.model import ModelFacts
from quirks_core.plan.diff import diff


def test_facts_show_both_values_under_their_path(make_context, make_plan):
    config = {"model_type": "gemma3", "text_config": {"layers": 2}}
    other = make_context(
        purpose="eval",
        platform="cuda",
        model=ModelFacts(name="tiny-gemma3", path="/elsewhere", config=config),
        packages={"torch": "2.13.0", "vllm": "0.33.0"},
        environment={"ANY_NAME": "1"},
    )

    plans = make_plan(), make_plan(context=other)

    facts, contrary = diff(*plans).facts, diff(*plans[::-1]).facts

    assert [(one.name, one.b, one.a) for one in contrary] == [(one.name, one.a, one.b) for one in facts]
    assert [[one.missing for one in found if one.missing] for found in (facts, contrary)] == [["a"] * 2, ["b"] * 2]
    assert {one.name: (one.a, one.b) for one in facts} == {
        "environment.ANY_NAME": (None, "1"),
        "model.config.model_type": ("qwen3", "gemma3"),
        "model.config.text_config.layers": (None, 2),
        "model.name": ("tiny-qwen3", "tiny-gemma3"),
        "packages.vllm": ("0.32.0", "0.33.0"),
        "platform": ("cpu", "cuda"),
        "purpose": ("rollout", "eval"),
    }


def test_a_slot_shows_both_values_with_their_origin(plan_of):
    slot = "engine.any_argument"
    wanted = Default(slot, at_most=8)

    (change,) = diff(plan_of(wanted, untyped={slot: 9}), plan_of(wanted, typed={slot: 9})).slots

    left, right = (
        {"value": 8, "who": ["q0"], "before": 9, "typed": False},
        {"value": 9, "who": ["the user"], "before": 9, "typed": True},
    )
    assert (change.a, change.b) == (left, right)


def test_a_quirk_whose_state_changes_shows_both_reasons(make_context, make_plan, make_quirk):
    newer = make_context(packages={"vllm": "0.33.0"})
    changes = make_quirk(affected=Affected("vllm", fixed="0.33.0"))

    (change,) = diff(make_plan(changes), make_plan(changes, context=newer)).quirks

    assert (change.name, change.a["state"], change.b["state"]) == ("example", "active", "dormant")
    assert "got 0.33.0" in change.b["because"]
    assert change.a["because"] != change.b["because"]
    stays = make_quirk(affected=Affected("vllm", fixed="0.9.0"))  # for another reason
    assert diff(make_plan(stays), make_plan(stays, context=newer)).quirks == ()
