"""The plan: its JSON, its digest, and what can be asked of it."""

from __future__ import annotations

import itertools
import json

import pytest

from quirks_core import Advise, Affected, Default, ModelFlag, Patch, Plan, Refuse, Require
from quirks_core.base.errors import UsageError
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
    """A comparison sees those in facts and ids, and true is not 1 to it."""
    facts = (
        {},
        {"platform": "cuda"},
        {"packages": {"vllm": "0.31.0"}},
        *({"config": config} for config in ({"model_type": "gemma3"}, {}, {"a": {}}, {"a": None})),
        {"environment": {"NAME": "1"}},
        {"recipe": "grpo"},
        {"extra": {"acme.nodes": 4}},
        *({"settings": {"engine.any_argument": value}} for value in (1, True)),
    )
    compared = [
        *(make_plan(context=make_context(**one)) for one in facts),
        make_plan(make_quirk()),
        make_plan(make_quirk(id="other")),
    ]
    plans = [
        *compared,
        make_plan(make_quirk(adjustments=Refuse("no", "none"))),
        make_plan(make_quirk(adjustments=ADDS)),
        *(make_plan(make_quirk(adjustments=Default("engine.seed", **bound))) for bound in ({"at_most": 1}, {"value": 1})),
    ]

    assert len({plan.digest for plan in plans}) == len(plans)
    assumed = make_plan(context=make_context(assumed=frozenset()))  # which no digest has
    assert [(a, b) for a, b in itertools.permutations([*compared, assumed], 2) if diff(a, b) == PlanDiff()] == []


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


def test_an_unknown_flag_or_slot_is_an_error_with_the_nearest(full_plan):
    with pytest.raises(UsageError, match="did you mean 'load_format'"):
        full_plan["LOAD_FROMAT"]
    with pytest.raises(UsageError, match=r"did you mean 'refit\.scope'"):
        full_plan.value("refit.scop")


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
