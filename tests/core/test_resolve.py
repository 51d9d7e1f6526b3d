"""Deciding what applies: match, versions and conditions in three values, and everything wrong in one go."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

import pytest

from quirks_core import Advise, Affected, Default, Fact, Refuse, Require, environment, model_type, setting, typed
from quirks_core.declaration.match import Match
from quirks_core.declaration.probes import Probe
from quirks_core.declaration.trace import Answer
from quirks_core.plan.records import NoteKind, RefusedError, State, Status
from quirks_core.plan.summary import messages

SLOT, EAGER = "engine.load_format", "engine.enforce_eager"
OTHERS = model_type("gemma3")
UNDECIDED = Fact("weather").is_true()


def test_all_refusals_come_in_one_error(plan_of):
    refuse = Refuse("it hangs", "use fewer ranks")
    plan = plan_of(refuse, Require(SLOT, "auto"), Default(EAGER, True), Default(EAGER, False), typed={SLOT: "dummy"})

    with pytest.raises(RefusedError, match="refused for 3 reasons") as error:
        plan.check()

    assert [name for name in ("q0", "q1", "q2", "q3") if name not in str(error.value)] == []
    first = plan.refusals[0]
    assert (first.kind, first.reason, first.remedy) == ("refuse", "it hangs", "use fewer ranks")
    assert first.switch == "--disable q0 (or quirks.disable: [q0])"


def test_any_adjustment_may_be_computed_from_the_facts(plan_of):
    plan = plan_of(
        Advise("look out"),
        Advise(lambda context: f"look at {context.model.name}"),
        Default("engine.seed", partial(lambda names, context: names[context.model.name], MappingProxyType({"tiny-qwen3": 10}))),
        Require("engine.max_model_len", at_most=lambda context: 8 if context.purpose == "rollout" else 16),
        Default(SLOT, one_of=lambda _: ("a", "b")),
    )

    assert [(note.kind, note.quirk, note.text) for note in plan.warnings] == [
        (NoteKind.ADVICE, "q0", "q0: look out"),
        (NoteKind.ADVICE, "q1", "q1: look at tiny-qwen3"),
    ]
    assert plan.changes == {"engine.seed": len("tiny-qwen3"), "engine.max_model_len": 8, SLOT: "a"}


def _ends_the_program(_):
    raise SystemExit(4)


@pytest.mark.parametrize(
    ("adjustment", "words"),
    [
        (Default("engine.seed", lambda _: 1 / 0), "ZeroDivisionError"),
        (Default("engine.seed", lambda _: "seven"), "engine.seed takes a whole number, not 'seven'"),
        (Default("engine.any_argument", lambda _: {"a": {2: 3}}), "not made of JSON values"),
        (Advise(_ends_the_program), "SystemExit: 4"),
    ],
)
def test_a_computed_value_that_cannot_be_used_refuses_the_run(plan_of, adjustment, words):
    plan = plan_of(adjustment, Default(EAGER, True))

    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.quirks[0].id, refusal.remedy) == ("broken", "q0", "report it to its distribution")
    assert (refusal.reason.startswith("its value cannot be used: "), words in refusal.reason) == (True, True)
    assert [item.status for item in plan.adjustments] == [Status.APPLIED]
    plan.to_json()


@pytest.mark.parametrize(
    ("declaration", "state", "because"),
    [
        ({"match": OTHERS}, State.NOT_MATCHED, "model.model_type: wanted gemma3, got qwen3"),
        ({"affected": Affected("vllm", fixed="0.9.2")}, State.DORMANT, "packages.vllm: wanted < 0.9.2, got 0.32.0"),
        # A quirk for others is not called dormant.
        ({"match": OTHERS, "affected": Affected("vllm", fixed="0.9.2")}, State.NOT_MATCHED, "model.model_type: wanted gemma3"),
        ({"match": UNDECIDED}, State.UNKNOWN, "weather: wanted true, got unknown (no fact has that name"),
        (
            {"match": Fact("model.model_typ").is_set()},
            State.UNKNOWN,
            "model.model_typ: wanted a value, got unknown (no fact has",
        ),
        ({"match": typed(EAGER)}, State.NOT_MATCHED, "typed.engine.enforce_eager: wanted true, got False"),
        ({}, State.ACTIVE, "every condition holds"),
        # Every affected package needs one range that holds.
        *(
            ({"affected": (Affected("vllm", introduced="0.30"), *more)}, state, "")
            for more, state in (
                ([Affected("vllm", fixed="0.9")], State.ACTIVE),
                ([Affected("torch", fixed="2.0")], State.DORMANT),
                ([Affected("torch", introduced="2.0")], State.ACTIVE),
                ([Affected("ray", fixed="2.0")], State.UNKNOWN),
            )
        ),
    ],
)
def test_a_quirk_that_does_not_concern_the_run_says_why(make_plan, make_quirk, declaration, state, because):
    plan = make_plan(make_quirk(adjustments=(Require("engine.seed", 1), Refuse("no", "none")), **declaration))

    (verdict,) = plan.verdicts
    assert (verdict.state, verdict.because[: len(because)]) == (state, because)
    assert bool(plan.adjustments) is bool(plan.refusals) is bool(plan.active) is (state is State.ACTIVE)
    warned = [f"example cannot be decided and does nothing: {verdict.because}"] if state is State.UNKNOWN else []
    assert [note.text for note in plan.warnings] == warned


def test_a_quirk_none_of_whose_adjustments_applies_does_nothing(plan_of):
    (verdict,) = plan_of([Default(SLOT, "auto", when=OTHERS), Refuse("no", "none", when=OTHERS)]).verdicts

    because = "it does nothing in this run: model.model_type: wanted gemma3, got qwen3"
    assert (verdict.state, verdict.because) == (State.NOT_MATCHED, because)


def test_advice_that_the_plan_makes_needless_is_taken_back(make_plan, make_quirk):
    eager, one = setting(EAGER).is_true(), environment("A").one_of("1")
    quirks = [
        make_quirk(id="forced", match=~eager, adjustments=Advise("set it")),
        make_quirk(id="new", match=eager, adjustments=Advise("nobody typed it")),
        make_quirk(id="only", match=~eager, adjustments=Advise("set it")),
        make_quirk(id="outside", match=~setting("refit.scope").is_set(), adjustments=Advise("nobody sets it here")),
        make_quirk(id="parts", adjustments=[Advise("set it", when=~eager), Advise("set A", when=~one), Advise("look")]),
    ]
    sets = make_quirk(
        id="sets", adjustments=[Default(EAGER, True), Default("refit.scope", "state_dict"), Default("env.A", "1")]
    )

    alone, together = make_plan(*quirks), make_plan(*quirks, sets, force=["forced"])

    kept = ["outside: nobody sets it here", "parts: look"]
    assert {note.text for note in alone.warnings} == {"forced: set it", "only: set it", "parts: set it", "parts: set A", *kept}
    assert [note.text for note in together.warnings] == ["forced: set it", *kept]
    assert [verdict.id for verdict in together.active] == ["forced", "outside", "parts", "sets"]
    assert together.verdicts[2].because == f"{EAGER}: wanted false, got True"


def test_an_adjustment_counts_only_where_its_condition_holds(plan_of):
    """A warning says where that cannot be decided."""
    off = Default(SLOT, "auto", when=OTHERS), Refuse("no", "none", when=OTHERS)
    plan = plan_of([*off, Default(EAGER, True, when=~OTHERS), Refuse("no", "none", when=UNDECIDED)])

    assert (plan.changes, plan.refusals) == ({EAGER: True}, ())
    (note,) = plan.warnings
    assert (note.kind, note.quirk) == (NoteKind.UNDECIDED, "q0")
    assert note.text == "q0: a condition cannot be decided: weather: wanted true, got unknown"


def test_what_is_undecided_is_folded_by_the_fact_that_is_missing(make_plan, make_quirk, make_context):
    scope, dtype = setting("refit.scope").one_of("parameters"), setting("train.dtype").one_of("float32")
    plan = make_plan(
        make_quirk(id="whole", match=scope & dtype),
        make_quirk(id="part", adjustments=[Default(EAGER, True), Advise("careful", when=scope)]),
        make_quirk(id="mistaken", match=UNDECIDED),
        context=make_context(undeclared=frozenset({"refit.scope", "train.dtype"})),
    )

    assert plan.undecided == {"refit.scope": ("part", "whole"), "train.dtype": ("whole",)}
    assert list(messages(plan)) == [
        "mistaken cannot be decided and does nothing: weather: wanted true, got unknown (no fact has that name)",
        "undecided: 2 quirks, without refit.scope, train.dtype; 'quirks plan --verbose' lists everything",
    ]


@pytest.mark.parametrize(
    ("adjustment", "words"),
    [
        (Require("engine.blok_size", 16), "no such engine argument; did you mean 'block_size'?"),
        (Require("engine.block_size", at_most="8"), "engine.block_size takes a whole number, not '8'"),
        (Default("engine.policy", one_of=["fcfs", "random"]), "engine.policy takes one of fcfs, priority, not 'random'"),
    ],
)
def test_what_the_installed_vllm_does_not_take_refuses_the_run(plan_of, write_modules, adjustment, words):
    arguments = "class EngineArgs:\n    block_size: int | None = None\n    policy: Literal['fcfs', 'priority'] = 'fcfs'\n"
    write_modules({"vllm/__init__.py": "", "vllm/engine/arg_utils.py": arguments})
    here, assumed = plan_of(adjustment, assumed=frozenset()), plan_of(adjustment)

    (refusal,) = here.refusals
    assert (refusal.kind, here.changes, words in refusal.reason) == ("broken", {}, True)
    assert (assumed.refusals, len(assumed.changes)) == ((), 1)


class _Raises(Match):
    def trace(self, facts):
        raise OSError(f"no {type(facts).__name__} for me")


@pytest.mark.parametrize("place", ["match", "when"])
def test_a_third_partys_match_that_fails_makes_its_quirk_unknown(make_plan, make_quirk, place):
    bad = {"match": _Raises()} if place == "match" else {"adjustments": Default("engine.seed", 1, when=_Raises())}

    plan = make_plan(make_quirk(id="bad", **bad), make_quirk(id="good"))

    assert plan.changes == {EAGER: True}
    assert [warning for warning in plan.warnings if warning.quirk == "bad"]
    plan.to_json()


@pytest.mark.parametrize("method", ["answer", "source"])
def test_a_third_partys_probe_that_fails_settles_nothing(make_plan, make_quirk, make_context, method):
    class Own(Probe):
        def source(self):
            return "vllm"

        def answer(self, _):
            return Answer.YES

    quirk = make_quirk(affected=Affected("vllm", fixed="0.9"), evidence=Own())
    context = make_context(packages={"vllm": "0.1.dev1"}, assumed=frozenset())
    assert make_plan(quirk, context=context).verdicts[0].state is State.ACTIVE

    setattr(Own, method, _ends_the_program)

    assert make_plan(quirk, context=context).verdicts[0].state is State.UNKNOWN
