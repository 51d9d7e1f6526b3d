"""The plan: its JSON, its digest, and what can be asked of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from quirks_core import (
    ABSENT,
    Advise,
    Affected,
    Default,
    ModelFacts,
    ModelFlag,
    Patch,
    Plan,
    Quirk,
    Refuse,
    Require,
    RunContext,
    UsageError,
)
from quirks_core.plan import Orders
from quirks_core.quirk import Location

MakeContext = Callable[..., RunContext]
MakePlan = Callable[..., Plan]
MakeQuirk = Callable[..., Quirk]
SLOT = "engine.load_format"


@pytest.fixture
def full_plan(make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext) -> Plan:
    """A plan with something in every part."""
    context = make_context(typed=frozenset({SLOT}), assumed=frozenset({"vllm"}))
    return make_plan(
        make_quirk(id="needs-auto", adjustments=Require(SLOT, "auto"), flag=ModelFlag.LOAD_FORMAT),
        make_quirk(id="hangs", adjustments=Refuse("it hangs", "use fewer ranks")),
        make_quirk(id="slow", adjustments=(Default("request.timeout_s", 600), Advise("look out"))),
        make_quirk(id="patches", adjustments=Patch("vllm.module:f", replacement="mine:function", expects=(ABSENT,))),
        make_quirk(id="old", affected=Affected("vllm", fixed="0.9.2")),
        context=context,
    )


def test_the_json_has_the_documented_keys(full_plan: Plan) -> None:
    document = json.loads(full_plan.to_json())

    assert set(document) == {"digest", "context", "changes", "adjustments", "verdicts", "refusals", "warnings", "patches"}
    assert {"slot", "value", "strength", "flag", "status", "quirks"} <= set(document["adjustments"][0])
    assert set(document["adjustments"][0]["quirks"][0]) == {
        "id",
        "distribution",
        "version",
        "location",
        "reason",
        "reference",
    }
    assert {"id", "verdict", "trace"} <= set(document["verdicts"][0])
    assert {"fact", "wanted", "got"} <= set(document["verdicts"][0]["trace"][0])
    assert {"reason", "remedy", "switch", "quirks"} <= set(document["refusals"][0])


@pytest.mark.parametrize("indent", [None, 2])
def test_the_keys_of_the_json_are_sorted(full_plan: Plan, indent: int | None) -> None:
    text = full_plan.to_json(indent=indent)

    separators = (",", ":") if indent is None else (",", ": ")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=indent, separators=separators, ensure_ascii=False)


def test_a_plan_survives_json(full_plan: Plan) -> None:
    read = Plan.model_validate_json(full_plan.to_json())

    assert read == full_plan
    assert read.orders.digest == read.digest == full_plan.digest


def test_the_orders_survive_json_with_their_digest(full_plan: Plan) -> None:
    assert Orders.model_validate_json(full_plan.orders.model_dump_json()).digest == full_plan.digest


def test_the_digest_ignores_file_and_line(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    adjustments = (Require(SLOT, "auto"), Patch("no_such.module:f", replacement="mine:function", expects=(ABSENT,)))

    plans = [make_plan(make_quirk(adjustments=adjustments, location=Location("a.py", line))) for line in (1, 2)]

    assert plans[0].digest == plans[1].digest
    assert plans[0].to_json() != plans[1].to_json()


def test_the_digest_ignores_where_the_model_lies(make_plan: MakePlan, make_context: MakeContext) -> None:
    plans = [make_plan(context=make_context(model=ModelFacts(name="m", path=path, config={}))) for path in ("/a/m", "/b/m")]

    assert plans[0].digest == plans[1].digest


def test_the_digest_sees_facts_quirks_and_their_versions(
    make_plan: MakePlan, make_context: MakeContext, make_quirk: MakeQuirk
) -> None:
    digests = {
        make_plan().digest,
        make_plan(context=make_context(platform="cuda")).digest,
        make_plan(context=make_context(packages={"vllm": "0.31.0"})).digest,
        make_plan(context=make_context(config={"model_type": "gemma3"})).digest,
        make_plan(make_quirk()).digest,
        make_plan(make_quirk(id="other")).digest,
        make_plan(make_quirk(adjustments=Refuse("no", "none"))).digest,
        make_plan(make_quirk(adjustments=Patch("no_such.module:f", replacement="mine:function", expects=(ABSENT,)))).digest,
    }

    assert len(digests) == 8


@pytest.mark.parametrize("part", ["to_json()", "digest"])
def test_every_process_makes_the_same_plan_of_the_same_facts(part: str) -> None:
    program = f"""
from quirks_core import ModelFacts, RunContext
from quirks_core.resolve import resolve
names = frozenset(["vllm", "torch", "ray", "transformers", "flash-attn"])
facts = RunContext(model=ModelFacts(name="m", path="m", config={{}}), typed=names, assumed=names)
print(resolve(facts, []).{part})
"""

    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(outputs) == 1


@pytest.mark.parametrize("flag", [ModelFlag.LOAD_FORMAT, "load_format", "LOAD_FORMAT"])
def test_a_flag_gives_its_adjustments(full_plan: Plan, flag: str) -> None:
    assert [item.slot for item in full_plan[flag]] == [SLOT]


def test_a_flag_without_adjustments_gives_none(full_plan: Plan) -> None:
    assert full_plan[ModelFlag.TOKENIZER] == ()


def test_a_value_that_two_flags_share_is_found_under_both(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    one = make_quirk(id="one", flag=ModelFlag.LOAD_FORMAT, adjustments=Require(SLOT, "auto"))
    two = make_quirk(id="two", flag=ModelFlag.WEIGHT_SYNC, adjustments=Require(SLOT, "auto"))

    plan = make_plan(one, two)

    assert plan[ModelFlag.LOAD_FORMAT] == plan[ModelFlag.WEIGHT_SYNC] == plan.adjustments
    assert len(plan.adjustments) == 1


def test_an_unknown_flag_is_an_error_with_the_nearest_name(full_plan: Plan) -> None:
    with pytest.raises(UsageError, match="did you mean 'load_format'"):
        full_plan["LOAD_FROMAT"]


def test_a_slots_value_is_a_quirks_else_the_users_else_the_configurations(full_plan: Plan) -> None:
    got = [full_plan.value(slot) for slot in ("request.timeout_s", SLOT, "engine.seed")]

    assert got == [600, "dummy", None]


def test_changes_are_only_what_quirks_change(full_plan: Plan) -> None:
    assert full_plan.changes == {"request.timeout_s": 600}


def test_active_quirks_are_those_that_concern_the_run(full_plan: Plan) -> None:
    assert [verdict.id for verdict in full_plan.active] == ["hangs", "needs-auto", "patches", "slow"]


def test_a_refusal_reads_as_who_why_remedy_and_switch(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    quirk = make_quirk(adjustments=Refuse("it hangs", "use fewer ranks"), location=Location("a/b.py", 3))

    text = str(make_plan(quirk).refusals[0])

    assert text.splitlines() == [
        "example (example-quirks 1.2, a/b.py:3): it hangs",
        "    remedy: use fewer ranks",
        "    override: --disable example (or quirks.disable: [example])",
    ]
