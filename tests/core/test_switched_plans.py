"""What switches do to a plan: forced quirks act whatever they say themselves, and what is off is not even imported."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from quirks_core import Affected, Default, Discovered, Fact, Plan, Quirk, Registry, RunContext, Switches, Wishes, model_type
from quirks_core.plan import State, Verdict
from quirks_core.trace import Answer

MakeContext = Callable[..., RunContext]
MakePlan = Callable[..., Plan]
MakeQuirk = Callable[..., Quirk]
EAGER = "engine.enforce_eager"

RELUCTANT = {
    "not matched": {"match": model_type("gemma3")},
    "dormant": {"affected": Affected("vllm", fixed="0.9.2")},
    "unknown": {"match": Fact("weather").is_true()},
}


def verdict(plan: Plan, quirk: str) -> Verdict:
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


@pytest.mark.parametrize("why", RELUCTANT)
def test_a_forced_quirk_is_active_whatever_it_says_itself(make_plan: MakePlan, make_quirk: MakeQuirk, why: str) -> None:
    quirk = make_quirk(**RELUCTANT[why])
    assert make_plan(quirk).value(EAGER) is None

    plan = make_plan(quirk, force=("example",))

    assert (plan.value(EAGER), verdict(plan, "example").state) == (True, State.ACTIVE)


@pytest.mark.parametrize("why", RELUCTANT)
def test_a_forced_quirk_keeps_its_own_answer_for_the_reader(make_plan: MakePlan, make_quirk: MakeQuirk, why: str) -> None:
    quirk = make_quirk(**RELUCTANT[why])
    own = verdict(make_plan(quirk), "example")

    forced = verdict(make_plan(quirk, force=("example",)), "example")

    assert (forced.verdict, forced.trace) == (own.verdict, own.trace)
    assert forced.verdict is not Answer.YES
    assert forced.because == f"forced by 'example' in the command line (--force); {own.because}"


def test_a_quirk_that_is_superseded_can_be_forced_beside_its_successor(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    old, new = make_quirk(id="old"), make_quirk(id="new", supersedes="old", adjustments=Default("engine.seed", 1))

    plan = make_plan(old, new, force=("old",))

    assert plan.changes == {EAGER: True, "engine.seed": 1}
    assert verdict(plan, "old").because.startswith("forced by 'old'")


def test_a_forced_quirks_adjustments_keep_their_own_conditions(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    quirk = make_quirk(match=model_type("gemma3"), adjustments=Default(EAGER, True, when=model_type("gemma3")))

    assert make_plan(quirk, force=("example",)).changes == {}


def test_a_disabled_quirk_says_who_switched_it_off_and_nothing_else(make_plan: MakePlan, make_quirk: MakeQuirk) -> None:
    plan = make_plan(make_quirk(match=Fact("weather").is_true()), disable=("third-party",))

    assert verdict(plan, "example").because == "switched off by 'third-party' in the command line (--disable)"
    assert (verdict(plan, "example").state, plan.warnings) == (State.DISABLED, ())


@pytest.fixture
def load_switched(
    fake_plugins: Callable[..., None], find_fakes: Callable[[], list[Discovered]]
) -> Callable[[Switches], Registry]:
    """Loads two distributions under the given switches."""
    fake_plugins("fake-acme", fake_one='QUIRK = make("fake-one")', fake_two='QUIRK = make("fake-two")')
    fake_plugins("fake-other", fake_three='QUIRK = make("fake-three")')
    return lambda switches: Registry.load(find_fakes(), switches=switches)


def switches(disable: tuple[str, ...] = (), force: tuple[str, ...] = ()) -> Switches:
    """The switches of a command line."""
    return Switches.gather(command_line=Wishes(disable, force), environ={})


@pytest.mark.parametrize(
    ("name", "loaded", "imported"),
    [
        ("distribution:fake_acme", ["fake-three"], {"fake_three"}),
        ("third-party", [], set()),
        ("all", [], set()),
    ],
)
def test_a_distribution_that_is_off_is_not_imported_and_the_registry_says_so(
    load_switched: Callable[[Switches], Registry], name: str, loaded: list[str], imported: set[str]
) -> None:
    registry = load_switched(switches(disable=(name,)))

    assert [item.quirk.id for item in registry.loaded] == loaded
    assert {"fake_one", "fake_two", "fake_three"} & sys.modules.keys() == imported
    assert len(registry.skipped) == 3 - len(loaded)
    shown = name.replace("_", "-")
    assert str(registry.skipped[0]) == (
        f"plugin 'fake-one' of fake-acme 1.2 was not loaded: switched off by {shown!r} in the command line (--disable)"
    )


def test_what_was_not_loaded_is_a_warning_of_the_plan(
    load_switched: Callable[[Switches], Registry], make_context: MakeContext
) -> None:
    off = switches(disable=("distribution:fake-acme",))

    plan = load_switched(off).resolve(make_context(), off)

    assert [warning.partition(" was not loaded")[0] for warning in plan.warnings] == [
        "plugin 'fake-one' of fake-acme 1.2",
        "plugin 'fake-two' of fake-acme 1.2",
    ]


def test_one_quirk_of_a_distribution_that_is_off_can_be_forced(
    load_switched: Callable[[Switches], Registry], make_context: MakeContext
) -> None:
    mixed = switches(disable=("distribution:fake-acme",), force=("fake-two",))

    plan = load_switched(mixed).resolve(make_context(), mixed)

    assert {item.id: item.state for item in plan.verdicts} == {
        "fake-one": State.DISABLED,
        "fake-two": State.ACTIVE,
        "fake-three": State.ACTIVE,
    }
    assert verdict(plan, "fake-one").because == "switched off by 'distribution:fake-acme' in the command line (--disable)"


def test_a_distribution_can_be_forced_where_all_third_parties_are_off(
    load_switched: Callable[[Switches], Registry], make_context: MakeContext
) -> None:
    mixed = switches(disable=("third-party",), force=("distribution:fake-other",))

    plan = load_switched(mixed).resolve(make_context(), mixed)

    assert [item.id for item in plan.active] == ["fake-three"]


def test_a_quirk_that_is_off_alone_is_loaded_so_that_its_name_is_known(
    load_switched: Callable[[Switches], Registry], make_context: MakeContext
) -> None:
    off = switches(disable=("fake-one",))

    registry = load_switched(off)

    assert (len(registry.loaded), registry.skipped) == (3, ())
    assert verdict(registry.resolve(make_context(), off), "fake-one").state is State.DISABLED


def test_a_quirk_can_be_named_although_its_distribution_is_off_as_well(
    load_switched: Callable[[Switches], Registry], make_context: MakeContext
) -> None:
    off = switches(disable=("fake-one", "distribution:fake-acme"))

    load_switched(off).resolve(make_context(), off)


def test_a_quirk_of_a_plugin_with_several_can_be_named_although_its_distribution_is_off(
    fake_plugins: Callable[..., None], find_fakes: Callable[[], list[Discovered]], make_context: MakeContext
) -> None:
    fake_plugins("fake-pack", fake_pack='@hookimpl\ndef quirks_declare():\n    return [make("fake-one")]')
    off = switches(disable=("fake-one", "distribution:fake-pack"))

    plan = Registry.load(find_fakes(), switches=off).resolve(make_context(), off)

    assert plan.active == ()


def test_a_name_that_nobody_bears_is_a_warning_where_a_distribution_that_is_off_may_have_it(
    load_switched: Callable[[Switches], Registry], make_context: MakeContext
) -> None:
    off = switches(disable=("third-party", "fake-won"))

    plan = load_switched(off).resolve(make_context(), off)

    assert any("'fake-won' in the command line (--disable); did you mean 'fake-" in text for text in plan.warnings)
