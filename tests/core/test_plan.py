"""The plan: its JSON, its digest, what can be asked of it, and what differs between two."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quirks_core import Advise, Affected, Default, ModelFlag, Patch, Plan, Refuse, Require
from quirks_core.declaration.quirk import Location
from quirks_core.facts.model import ModelFacts
from quirks_core.plan.diff import PlanDiff, diff
from quirks_core.plan.records import ProcessPlan

SLOT = "engine.load_format"
ADDS = Patch("no_such_package.module:f", adds="mine:function")


@pytest.fixture
def full_plan(make_plan, make_quirk, make_context):
    """A plan with something in every part."""
    context = make_context(typed=frozenset({SLOT}), environment={"NAME": "1"})
    slow = (Default("request.timeout_s", 600), Default("engine.hf_overrides", {"a": {"b": [1, None]}}), Advise("look out"))
    return make_plan(
        make_quirk(id="needs-auto", adjustments=Require(SLOT, "auto"), flag=ModelFlag.LOAD_FORMAT),
        make_quirk(id="hangs", adjustments=Refuse("it hangs", "use fewer ranks"), location=Location("a/b.py", 3)),
        make_quirk(id="slow", adjustments=slow),
        make_quirk(id="bounds", adjustments=Default("engine.max_num_seqs", at_most=8)),
        make_quirk(id="patches", adjustments=ADDS),
        make_quirk(id="old", affected=Affected("vllm", fixed="0.9.2")),
        context=context,
    )


def test_a_plan_survives_json_with_its_digest(full_plan):
    """The keys are in order; `tests/cli/test_schemas.py` has which they are."""
    text = full_plan.to_json()
    read = Plan.model_validate_json(text)

    assert text == json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert read == full_plan
    assert read.for_processes.digest == read.digest == full_plan.digest
    assert ProcessPlan.model_validate_json(full_plan.for_processes.model_dump_json()).digest == full_plan.digest


def test_the_digest_ignores_where_files_lie(make_plan, make_quirk, make_context):
    plans = [
        make_plan(
            make_quirk(adjustments=(Require(SLOT, "auto"), ADDS), location=Location("a.py", line)),
            context=make_context(model=ModelFacts(name="m", path=f"/{line}/m", config={})),
        )
        for line in (1, 2)
    ]

    assert plans[0].digest == plans[1].digest
    assert plans[0].to_json() != plans[1].to_json()
    assert diff(*plans) == PlanDiff()


def test_the_digest_sees_every_difference_in_facts_or_quirks(make_plan, make_context, make_quirk):
    digests = {
        make_plan().digest,
        make_plan(context=make_context(platform="cuda")).digest,
        make_plan(context=make_context(packages={"vllm": "0.31.0"})).digest,
        make_plan(context=make_context(config={"model_type": "gemma3"})).digest,
        make_plan(context=make_context(environment={"NAME": "1"})).digest,
        make_plan(make_quirk()).digest,
        make_plan(make_quirk(id="other")).digest,
        make_plan(make_quirk(adjustments=Refuse("no", "none"))).digest,
        make_plan(make_quirk(adjustments=ADDS)).digest,
        *(
            make_plan(make_quirk(adjustments=Default("engine.seed", **bound))).digest
            for bound in ({"at_most": 1}, {"value": 1})
        ),
    }

    assert len(digests) == 11


@pytest.mark.parametrize(("platform", "eager", "graphs"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)])
def test_an_engine_captures_graphs_on_a_gpu_unless_it_is_eager(make_plan, make_context, make_quirk, platform, eager, graphs):
    quirk = make_quirk(adjustments=Require("engine.enforce_eager", eager))

    assert make_plan(quirk, context=make_context(platform=platform)).captures_graphs is graphs


def test_a_flag_gives_its_adjustments(full_plan, make_plan, make_quirk):
    flags = (ModelFlag.LOAD_FORMAT, ModelFlag.WEIGHT_SYNC)
    shared = make_plan(*(make_quirk(id=f"q{n}", flag=flag, adjustments=Require(SLOT, "auto")) for n, flag in enumerate(flags)))

    assert [[item.slot for item in full_plan[name]] for name in (flags[0], "load_format", "LOAD_FORMAT")] == [[SLOT]] * 3
    assert full_plan[ModelFlag.TOKENIZER] == ()
    assert shared[flags[0]] == shared[flags[1]] == shared.adjustments
    assert len(shared.adjustments) == 1


def test_a_slots_value_is_a_quirks_or_the_users(full_plan):
    """Else the configuration's, whatever family the slot is of."""
    slots = ("request.timeout_s", "engine.max_num_seqs", SLOT, "env.NAME", "engine.seed", "engine.any_argument", "env.OTHER")

    assert [full_plan.value(slot) for slot in slots] == [600, 8, "dummy", "1", None, None, None]
    assert [verdict.id for verdict in full_plan.active] == ["bounds", "hangs", "needs-auto", "patches", "slow"]
    assert full_plan.changes == {
        "engine.hf_overrides": {"a": {"b": [1, None]}},
        "engine.max_num_seqs": 8,
        "request.timeout_s": 600,
    }


# ---- what differs between two plans: everything that matters, nothing else, and from either side the same

EAGER = "engine.enforce_eager"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0]) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["", "a", "b", "a.b"]), inner, max_size=3),
    max_leaves=4,
)
CONFIGS = st.dictionaries(st.sampled_from(["a", "b", "a.b"]), JSON, max_size=3)
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
