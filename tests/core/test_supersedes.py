"""A quirk can take the place of another; both show in the plan, and switching the new one off brings the old one back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quirks_core import Default, Loaded, Plan, Quirk, Registry, RunContext, Switches, Wishes, discover, model_type
from quirks_core.plan import State, Verdict
from quirks_core.quirk import Location
from quirks_core.resolve import resolve

MakePlan = Callable[..., Plan]
MakeQuirk = Callable[..., Quirk]
LoadFakes = Callable[..., Registry]
EAGER = "engine.enforce_eager"


def states(plan: Plan) -> dict[str, State]:
    """What became of each quirk."""
    return {verdict.id: verdict.state for verdict in plan.verdicts}


def verdict(plan: Plan, quirk: str) -> Verdict:
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


@pytest.fixture
def old(make_quirk: MakeQuirk) -> Quirk:
    """The quirk that is replaced."""
    return make_quirk(id="old", adjustments=Default(EAGER, True))


@pytest.fixture
def new(make_quirk: MakeQuirk) -> Quirk:
    """Its successor, which wants the contrary."""
    return make_quirk(id="new", supersedes="old", adjustments=Default(EAGER, False), location=Location("acme/new.py", 7))


def test_a_superseded_quirk_does_nothing_and_names_its_successor(make_plan: MakePlan, old: Quirk, new: Quirk) -> None:
    plan = make_plan(old, new)

    assert (states(plan), plan.value(EAGER)) == ({"new": State.ACTIVE, "old": State.SUPERSEDED}, False)
    assert verdict(plan, "old").because == "superseded by new (example-quirks 1.2, acme/new.py:7)"


def test_a_superseded_quirk_keeps_its_own_answer_for_the_reader(make_plan: MakePlan, old: Quirk, new: Quirk) -> None:
    assert verdict(make_plan(old, new), "old").verdict == verdict(make_plan(old), "old").verdict == "yes"


def test_several_successors_are_all_named(make_plan: MakePlan, make_quirk: MakeQuirk, old: Quirk) -> None:
    successors = [make_quirk(id=name, supersedes="old") for name in ("z-new", "a-new")]

    because = verdict(make_plan(old, *successors), "old").because

    assert because.index("a-new (") < because.index(" and z-new (")


def test_a_chain_leaves_only_the_last(make_plan: MakePlan, make_quirk: MakeQuirk, old: Quirk, new: Quirk) -> None:
    plan = make_plan(old, new, make_quirk(id="newest", supersedes="new"))

    assert states(plan) == {"newest": State.ACTIVE, "new": State.SUPERSEDED, "old": State.SUPERSEDED}


@pytest.mark.parametrize("off", ["new", "distribution:example-quirks"])
def test_a_successor_that_is_switched_off_brings_the_old_one_back(
    make_context: Callable[..., RunContext], loaded: Callable[..., Loaded], old: Quirk, new: Quirk, off: str
) -> None:
    items = [loaded(old, "model-quirks"), loaded(new)]
    plan = resolve(make_context(), items, Switches.gather(command_line=Wishes([off]), environ={}))

    assert (states(plan), plan.value(EAGER)) == ({"new": State.DISABLED, "old": State.ACTIVE}, True)


def test_a_successor_replaces_also_where_it_does_not_match_itself(
    make_plan: MakePlan, make_quirk: MakeQuirk, old: Quirk
) -> None:
    plan = make_plan(old, make_quirk(id="new", supersedes="old", match=model_type("gemma3")))

    assert states(plan) == {"new": State.NOT_MATCHED, "old": State.SUPERSEDED}


def test_the_middle_of_a_chain_still_replaces_while_the_last_is_off(
    make_plan: MakePlan, make_quirk: MakeQuirk, old: Quirk, new: Quirk
) -> None:
    plan = make_plan(old, new, make_quirk(id="newest", supersedes="new"), disable=("newest",))

    assert states(plan) == {"newest": State.DISABLED, "new": State.ACTIVE, "old": State.SUPERSEDED}


def test_a_quirk_that_is_off_stays_off_although_it_is_superseded(make_plan: MakePlan, old: Quirk, new: Quirk) -> None:
    plan = make_plan(old, new, disable=("old",))

    assert verdict(plan, "old").because == "switched off by 'old' in the command line (--disable)"


def test_superseding_what_does_not_exist_changes_nothing(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(supersedes=("long-gone", "never-was")))

    assert (states(plan), plan.warnings) == ({"example": State.ACTIVE}, ())


@pytest.mark.parametrize(
    "circle",
    [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a"}, {"a": "b", "b": "c", "c": "b"}],
    ids=["itself", "two", "three", "two and one that points at them"],
)
def test_quirks_that_supersede_each_other_in_a_circle_are_broken_and_the_others_work(
    load_fakes: LoadFakes, circle: dict[str, str]
) -> None:
    plugins = {f"fake_{name}": f'QUIRK = make("fake-{name}", supersedes="fake-{other}")' for name, other in circle.items()}

    registry = load_fakes(**plugins, fake_good='QUIRK = make("fake-good")')

    caught = {name for name in circle if name != "a" or "a" in circle.values()}
    assert {row.name for row in registry.broken} == {f"fake-{name}" for name in caught}
    assert all("circular supersedes: fake-" in row.error for row in registry.broken)
    assert {item.quirk.id for item in registry.loaded} == {"fake-good", *(f"fake-{name}" for name in circle.keys() - caught)}


def test_a_circle_is_told_as_the_way_round(load_fakes: LoadFakes) -> None:
    registry = load_fakes(
        fake_a='QUIRK = make("fake-a", supersedes="fake-b")', fake_b='QUIRK = make("fake-b", supersedes="fake-a")'
    )

    assert {row.error for row in registry.broken} <= {
        "circular supersedes: fake-a → fake-b → fake-a",
        "circular supersedes: fake-b → fake-a → fake-b",
    }


def test_a_third_party_cannot_break_a_quirk_of_ours_by_a_circle(
    fake_distribution: Callable[..., None], plugin_prelude: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = 'QUIRK = make("v1-runtime", supersedes="fake-new")'
    theirs = 'QUIRK = make("fake-new", supersedes="v1-runtime")'
    fake_distribution("fake-new", entry_points={"fake-new": "fake_new:QUIRK"}, modules={"fake_new.py": plugin_prelude + theirs})
    found = [item for item in discover() if item.name in ("fake-new", "v1-runtime")]
    namespace: dict[str, object] = {"__name__": "quirks_plugins.runtime.v1_runtime"}
    exec(plugin_prelude + ours, namespace)  # noqa: S102 - our own text: a built-in quirk that names a third party's
    import quirks_plugins.runtime.v1_runtime as built_in

    monkeypatch.setattr(built_in, "QUIRK", namespace["QUIRK"])

    registry = Registry.load(found)

    assert [item.quirk.id for item in registry.loaded] == ["v1-runtime"]
    assert [row.name for row in registry.broken] == ["fake-new"]


@pytest.mark.timeout(60)
def test_a_very_long_chain_is_looked_through(load_fakes: LoadFakes) -> None:
    chain = 'return [make(f"fake-{n}", supersedes=f"fake-{n + 1}") for n in range(3000)]'

    registry = load_fakes(fake_chain=f"@hookimpl\ndef quirks_declare():\n    {chain}\n")

    assert (len(registry.loaded), registry.broken) == (3000, ())
