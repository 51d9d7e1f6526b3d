"""What differs between two plans: everything that matters, nothing else, and from either side the same."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quirks_core import Affected, Default, Require
from quirks_core.facts.model import ModelFacts
from quirks_core.plan.diff import PlanDiff, diff

EAGER = "engine.enforce_eager"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0]) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=3),
    max_leaves=4,
)
CONFIGS = st.dictionaries(st.sampled_from(["a", "b"]), JSON, max_size=3)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "purpose": st.sampled_from(["rollout", "eval", "serve"]),
        "recipe": st.sampled_from([None, "grpo"]),
        "model": CONFIGS.map(lambda config: ModelFacts(name="tiny", path="/models/tiny", config=config)),
        "settings": st.dictionaries(st.sampled_from([EAGER, "engine.any_argument"]), st.sampled_from([0, 1, True, 1.0])),
        "typed": st.frozensets(st.sampled_from([EAGER, "engine.any_argument"])),
        "packages": st.dictionaries(st.sampled_from(["vllm", "torch"]), st.sampled_from(["0.9", "0.9.0", "1.0"])),
        "assumed": st.frozensets(st.sampled_from(["vllm", "torch"])),
        "platform": st.sampled_from([None, "cpu", "cuda"]),
        "environment": st.dictionaries(st.sampled_from(["VLLM_A", "NAME"]), st.sampled_from(["0", "1"])),
        "extra": CONFIGS,
    },
)


@settings(max_examples=200)
@given(first=FACTS, second=FACTS)
@example(first={}, second={"settings": {EAGER: 0}})
def test_facts_that_differ_are_shown(first, second, make_context, make_plan, make_quirk):
    quirk = make_quirk(adjustments=(Default(EAGER, True), Require("engine.max_num_seqs", at_most=8), Default("env.NAME", "1")))
    a, b = (make_plan(quirk, context=make_context(**facts)) for facts in (first, second))

    found = diff(a, b)

    assert found != PlanDiff() or a.digest == b.digest
    assert diff(a, a) == PlanDiff()
    assert [(one.name, one.a, one.b) for one in diff(b, a).facts] == [(one.name, one.b, one.a) for one in found.facts]


def test_facts_show_both_values_under_their_path(make_context, make_plan):
    config = {"model_type": "gemma3", "text_config": {"layers": 2}}
    other = make_context(
        purpose="eval",
        model=ModelFacts(name="tiny-gemma3", path="/elsewhere", config=config),
        packages={"torch": "2.13.0", "vllm": "0.33.0"},
        platform="cuda",
        environment={"ANY_NAME": "1"},
    )

    found = diff(make_plan(), make_plan(context=other))

    assert {fact.name: (fact.a, fact.b) for fact in found.facts} == {
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
