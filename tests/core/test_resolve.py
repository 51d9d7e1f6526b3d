"""Deciding what applies: strengths, conflicts, the user's word, and everything wrong in one go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import (
    Advise,
    Affected,
    Default,
    Fact,
    Loaded,
    ModelFlag,
    Plan,
    Quirk,
    Refuse,
    RefusedError,
    Require,
    RunContext,
    StaticProbe,
    Switches,
    model_type,
)
from quirks_core.match import Match
from quirks_core.plan import State, Status
from quirks_core.quirk import Location
from quirks_core.resolve import resolve
from quirks_core.trace import Trace

MakeContext = Callable[..., RunContext]
MakePlan = Callable[..., Plan]
MakeQuirk = Callable[..., Quirk]
MakeLoaded = Callable[..., Loaded]
SLOT = "engine.load_format"
EAGER = "engine.enforce_eager"
OTHERS = model_type("gemma3")
UNDECIDED = Fact("weather").is_true()


def statuses(plan: Plan) -> dict[str, Status]:
    """Gives the status of each adjustment by the quirks that asked for it."""
    return {"+".join(quirk.id for quirk in item.quirks): item.status for item in plan.adjustments}


def test_a_default_fills_what_the_user_left_open(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(adjustments=Default(EAGER, True)))

    assert (plan.value(EAGER), statuses(plan)) == (True, {"example": Status.APPLIED})


def test_a_requirement_beats_a_default(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    weak = make_quirk(id="weak", adjustments=Default(SLOT, "sharded"))
    strong = make_quirk(id="strong", adjustments=Require(SLOT, "auto"))

    plan = make_plan(weak, strong)

    assert plan.value(SLOT) == "auto"
    assert statuses(plan) == {"weak": Status.OUTRANKED, "strong": Status.APPLIED}
    assert plan.refusals == ()


@pytest.mark.parametrize("kind", [Default, Require])
def test_equal_wishes_are_credited_to_all_who_asked(
    make_plan: MakePlan, make_quirk: MakeQuirk, kind: Callable[..., object]
) -> None:
    plan = make_plan(*(make_quirk(id=name, adjustments=kind(SLOT, "auto")) for name in ("one", "two", "three")))

    assert statuses(plan) == {"one+three+two": Status.APPLIED}


def test_the_same_number_written_as_integer_and_as_float_is_no_conflict(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    one, two = (make_quirk(id=name, adjustments=Default("request.timeout_s", n)) for name, n in (("one", 600), ("two", 600.0)))

    assert statuses(make_plan(one, two)) == {"one+two": Status.APPLIED}


@pytest.mark.parametrize("kind", [Default, Require])
def test_unequal_wishes_of_one_strength_are_a_conflict_that_names_everything(
    make_context: MakeContext, make_quirk: MakeQuirk, loaded: MakeLoaded, kind: Callable[..., object]
) -> None:
    one = loaded(make_quirk(id="one", adjustments=kind(SLOT, "auto"), location=Location("a/one.py", 3)), "dist-a", "1.0")
    two = loaded(make_quirk(id="two", adjustments=kind(SLOT, "sharded"), location=Location("b/two.py", 7)), "dist-b", "2.0")

    plan = resolve(make_context(), [one, two])

    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.slot) == ("conflict", SLOT)
    assert "one (dist-a 1.0, a/one.py:3) wants engine.load_format = 'auto'" in refusal.reason
    assert "two (dist-b 2.0, b/two.py:7) wants engine.load_format = 'sharded'" in refusal.reason
    assert refusal.switch == ("--disable one (or quirks.disable: [one]) or --disable two (or quirks.disable: [two])")
    assert statuses(plan) == {"one": Status.CONFLICT, "two": Status.CONFLICT}


def test_a_slot_in_conflict_keeps_its_value(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(*(make_quirk(id=name, adjustments=Require(SLOT, name)) for name in ("auto", "sharded")))

    assert (plan.value(SLOT), plan.changes) == ("dummy", {})


def test_the_switch_of_a_conflict_settles_it(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    quirks = [make_quirk(id=name, adjustments=Require(SLOT, name)) for name in ("auto", "sharded")]

    plan = make_plan(*quirks, disable=("auto",))

    assert (plan.refusals, plan.value(SLOT)) == ((), "sharded")


def test_defaults_that_disagree_do_not_matter_where_a_requirement_wins(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    defaults = [make_quirk(id=name, adjustments=Default(SLOT, name)) for name in ("tensorizer", "sharded")]

    plan = make_plan(*defaults, make_quirk(id="strong", adjustments=Require(SLOT, "auto")))

    assert (plan.refusals, plan.value(SLOT)) == ((), "auto")


def test_the_users_explicit_value_wins_over_a_default_and_the_plan_says_so(
    make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext
) -> None:
    context = make_context(settings={EAGER: False}, typed=frozenset({EAGER}))

    plan = make_plan(make_quirk(adjustments=Default(EAGER, True)), context=context)

    assert (plan.value(EAGER), statuses(plan)) == (False, {"example": Status.KEPT_USER})
    assert plan.adjustments[0].reason == "the user typed False, which wins over a default"


def test_a_default_of_the_configuration_does_not_win(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(adjustments=Default(SLOT, "auto")))

    assert plan.changes == {SLOT: "auto"}


@pytest.mark.parametrize("kind", [Default, Require])
@pytest.mark.parametrize("typed", [frozenset({SLOT}), frozenset()])
def test_a_value_that_is_set_already_changes_nothing(
    make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext, kind: Callable[..., object], typed: frozenset[str]
) -> None:
    plan = make_plan(make_quirk(adjustments=kind(SLOT, "dummy")), context=make_context(typed=typed))

    assert (statuses(plan), plan.changes, plan.refusals) == ({"example": Status.ALREADY_SET}, {}, ())


def test_a_contrary_explicit_value_against_a_requirement_refuses_the_run(
    make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext
) -> None:
    quirk = make_quirk(adjustments=Require(SLOT, "auto", reason="weights must be read"))

    plan = make_plan(quirk, context=make_context(typed=frozenset({SLOT})))

    (refusal,) = plan.refusals
    assert refusal.reason == "engine.load_format must be 'auto', but 'dummy' was set explicitly: weights must be read"
    assert refusal.remedy == "remove engine.load_format from the configuration, or set it to 'auto'"
    assert refusal.switch == "--disable example (or quirks.disable: [example])"
    assert (statuses(plan), plan.value(SLOT)) == ({"example": Status.REFUSED}, "dummy")


def test_a_requirement_may_bring_its_own_remedy(make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext) -> None:
    quirk = make_quirk(adjustments=Require(SLOT, "auto", remedy="convert the checkpoint"))

    plan = make_plan(quirk, context=make_context(typed=frozenset({SLOT})))

    assert plan.refusals[0].remedy == "convert the checkpoint"


def test_a_value_that_serves_as_well_is_kept(make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext) -> None:
    context = make_context(settings={SLOT: "sharded"}, typed=frozenset({SLOT}))

    plan = make_plan(make_quirk(adjustments=Require(SLOT, "auto", instead_of=("dummy",))), context=context)

    assert (statuses(plan), plan.refusals, plan.value(SLOT)) == ({"example": Status.KEPT_USER}, (), "sharded")


def test_a_value_named_by_instead_of_is_refused(make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext) -> None:
    quirk = make_quirk(adjustments=Require(SLOT, "auto", instead_of=("dummy",)))

    plan = make_plan(quirk, context=make_context(typed=frozenset({SLOT})))

    assert statuses(plan) == {"example": Status.REFUSED}


def test_every_requirement_must_be_content_with_the_users_value(
    make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext
) -> None:
    context = make_context(settings={SLOT: "sharded"}, typed=frozenset({SLOT}))
    lenient = make_quirk(id="a-lenient", adjustments=Require(SLOT, "auto", instead_of=("dummy",)))
    strict = make_quirk(id="b-strict", adjustments=Require(SLOT, "auto"))

    plan = make_plan(lenient, strict, context=context)

    assert statuses(plan) == {"a-lenient+b-strict": Status.REFUSED}


def test_a_refusal_carries_reason_remedy_and_switch(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    (refusal,) = make_plan(make_quirk(adjustments=Refuse("it hangs", "use fewer ranks"))).refusals

    assert (refusal.kind, refusal.reason, refusal.remedy) == ("refuse", "it hangs", "use fewer ranks")
    assert refusal.switch == "--disable example (or quirks.disable: [example])"


def test_all_refusals_come_at_once(make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext) -> None:
    quirks = [
        make_quirk(id="hangs", adjustments=Refuse("it hangs", "use fewer ranks")),
        make_quirk(id="needs-auto", adjustments=Require(SLOT, "auto")),
        make_quirk(id="wants-eager", adjustments=Default(EAGER, True)),
        make_quirk(id="wants-graphs", adjustments=Default(EAGER, False)),
    ]
    plan = make_plan(*quirks, context=make_context(typed=frozenset({SLOT})))

    with pytest.raises(RefusedError, match="refused for 3 reasons") as error:
        plan.check()

    assert [quirk.id for quirk in quirks if quirk.id not in str(error.value)] == []


def test_a_plan_without_refusals_passes(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    make_plan(make_quirk()).check()


def test_advice_is_a_warning_and_may_be_computed(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    said = make_quirk(id="said", adjustments=Advise("look out"))
    computed = make_quirk(id="computed", adjustments=Advise(lambda context: f"look at {context.model.name}"))

    assert make_plan(said, computed).warnings == ("computed: look at tiny-qwen3", "said: look out")


def test_unknown_does_nothing_and_warns(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(match=UNDECIDED, adjustments=(Require(SLOT, "auto"), Refuse("no", "none"))))

    assert (plan.adjustments, plan.refusals, plan.verdicts[0].state) == ((), (), State.UNKNOWN)
    (warning,) = plan.warnings
    assert warning.startswith("example cannot be decided and does nothing: weather: wanted true, got unknown")


def test_a_quirk_for_others_is_not_matched_and_says_why(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(match=OTHERS))

    assert (plan.verdicts[0].state, plan.adjustments, plan.warnings) == (State.NOT_MATCHED, (), ())
    assert plan.verdicts[0].because == "model.model_type: wanted gemma3, got qwen3"


def test_past_the_fix_a_quirk_is_dormant_and_does_nothing(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(affected=Affected("vllm", fixed="0.9.2")))

    assert (plan.verdicts[0].state, plan.adjustments, plan.active) == (State.DORMANT, (), ())
    assert plan.verdicts[0].because == "packages.vllm: wanted < 0.9.2, got 0.32.0"


def test_a_quirk_for_others_is_not_called_dormant(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(match=OTHERS, affected=Affected("vllm", fixed="0.9.2")))

    assert plan.verdicts[0].state is State.NOT_MATCHED


@pytest.mark.parametrize(
    ("affected", "state"),
    [
        ((Affected("vllm", fixed="0.9"), Affected("vllm", introduced="0.30")), State.ACTIVE),
        ((Affected("vllm", introduced="0.30"), Affected("torch", fixed="2.0")), State.DORMANT),
        ((Affected("vllm", introduced="0.30"), Affected("torch", introduced="2.0")), State.ACTIVE),
        ((Affected("vllm", introduced="0.30"), Affected("ray", fixed="2.0")), State.UNKNOWN),
    ],
)
def test_ranges_of_one_package_are_alternatives_and_packages_go_together(
    make_plan: MakePlan, make_quirk: MakeQuirk, affected: tuple[Affected, ...], state: State
) -> None:
    assert make_plan(make_quirk(affected=affected)).verdicts[0].state is state


@pytest.mark.parametrize(("found_means_affected", "state"), [(True, State.ACTIVE), (False, State.DORMANT)])
def test_a_probe_settles_a_source_build(
    make_plan: MakePlan,
    make_quirk: MakeQuirk,
    make_context: MakeContext,
    write_modules: Callable[[dict[str, str]], None],
    found_means_affected: bool,
    state: State,
) -> None:
    write_modules({"fake_engine/__init__.py": "BUG = True\n"})
    probe = StaticProbe("fake_engine", "BUG", found_means_affected=found_means_affected)
    quirk = make_quirk(affected=Affected("fake_engine", fixed="0.9.2"), evidence=probe)

    plan = make_plan(quirk, context=make_context(packages={"fake-engine": "0.1.dev1+g1234567"}))

    assert plan.verdicts[0].state is state


def test_an_assumed_source_build_stays_unknown(make_plan: MakePlan, make_quirk: MakeQuirk, make_context: MakeContext) -> None:
    probe = StaticProbe("quirks_core", "import", found_means_affected=True)
    quirk = make_quirk(affected=Affected("vllm", fixed="0.9.2"), evidence=probe)
    context = make_context(packages={"vllm": "0.1.dev1"}, assumed=frozenset({"vllm"}))

    assert make_plan(quirk, context=context).verdicts[0].state is State.UNKNOWN


@pytest.mark.parametrize("name", ["example", "enforce_eager", "ENFORCE_EAGER"])
def test_a_disabled_quirk_does_nothing_and_names_the_layer(make_plan: MakePlan, make_quirk: MakeQuirk, name: str) -> None:
    plan = make_plan(make_quirk(flag=ModelFlag.ENFORCE_EAGER), disable=(name,))

    assert (plan.verdicts[0].state, plan.adjustments) == (State.DISABLED, ())
    named = name.lower() if name != "example" else name
    assert plan.verdicts[0].because == f"switched off by {named!r} in the command line (--disable)"


def test_a_disabled_quirk_that_cannot_be_decided_does_not_warn(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    assert make_plan(make_quirk(match=UNDECIDED), disable=("example",)).warnings == ()


def test_an_adjustment_counts_only_where_its_condition_holds(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    quirk = make_quirk(
        adjustments=(Default(SLOT, "auto", when=OTHERS), Default(EAGER, True, when=~OTHERS), Refuse("no", "none", when=OTHERS))
    )

    plan = make_plan(quirk)

    assert (plan.changes, plan.refusals, plan.warnings) == ({EAGER: True}, (), ())


def test_a_condition_that_cannot_be_decided_does_nothing_and_warns(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(adjustments=Refuse("no", "none", when=UNDECIDED)))

    assert plan.refusals == ()
    assert plan.warnings == ("example: a condition cannot be decided: weather: wanted true, got unknown",)


def test_a_value_may_be_computed_from_the_facts(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(adjustments=Default("engine.seed", lambda context: len(context.model.name))))

    assert plan.value("engine.seed") == len("tiny-qwen3")


@pytest.mark.parametrize("function", [lambda _: 1 / 0, lambda _: "seven", lambda _: None])
def test_a_computed_value_that_cannot_be_used_refuses_the_run_and_names_the_quirk(
    make_plan: MakePlan, make_quirk: MakeQuirk, function: Callable[[RunContext], object]
) -> None:
    plan = make_plan(make_quirk(id="faulty", adjustments=Default("engine.seed", function)), make_quirk(id="healthy"))

    assert [(refusal.kind, refusal.quirks[0].id) for refusal in plan.refusals] == [("broken", "faulty")]
    assert statuses(plan) == {"healthy": Status.APPLIED}


def test_without_quirks_the_plan_is_empty(make_context: MakeContext) -> None:
    plan = resolve(make_context(), [], Switches())

    assert (plan.adjustments, plan.verdicts, plan.refusals, plan.warnings, plan.patches) == ((), (), (), (), ())


class _Explosive(Match):
    """A third party's own kind of match, with a bug."""

    def trace(self, facts: object) -> Trace:
        raise RuntimeError(f"no {type(facts).__name__} for me")


def test_a_match_that_raises_makes_only_its_own_quirk_unknown(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    bad = make_quirk(id="bad", match=_Explosive())
    good = make_quirk(id="good", adjustments=Default(EAGER, True))

    plan = make_plan(bad, good)

    assert {verdict.id: verdict.state for verdict in plan.verdicts} == {"bad": State.UNKNOWN, "good": State.ACTIVE}
    assert any("RuntimeError: no RunContext for me" in warning for warning in plan.warnings)
