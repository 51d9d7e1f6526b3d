"""What switches do to a plan: forced quirks act whatever they say themselves, and what is off is not even imported."""

from __future__ import annotations

import sys

import pytest

from quirks_core import Affected, Default, Fact, model_type
from quirks_core.declaration.trace import Answer
from quirks_core.plan.records import Note, NoteKind, State
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.registry import Registry

EAGER = "engine.enforce_eager"
RELUCTANT = {
    "not matched": {"match": model_type("gemma3")},
    "dormant": {"affected": Affected("vllm", fixed="0.9.2")},
    "unknown": {"match": Fact("weather").is_true()},
}


def verdict(plan, quirk="example"):
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


@pytest.mark.parametrize("why", RELUCTANT)
def test_a_forced_quirk_is_active_whatever_its_own_answer(make_plan, make_quirk, why):
    quirk = make_quirk(**RELUCTANT[why])
    own, forced = make_plan(quirk), make_plan(quirk, force=("example",))

    assert (own.value(EAGER), forced.value(EAGER), verdict(forced).state) == (None, True, State.ACTIVE)
    assert (verdict(forced).verdict, verdict(forced).trace) == (verdict(own).verdict, verdict(own).trace)
    assert verdict(forced).verdict is not Answer.YES
    assert verdict(forced).because == f"forced by 'example' in the command line (--force); {verdict(own).because}"


def test_a_superseded_quirk_can_be_forced_within_its_conditions(make_plan, make_quirk):
    old = make_quirk(id="old", adjustments=(Default(EAGER, True), Default("engine.dtype", "x", when=model_type("gemma3"))))
    new = make_quirk(id="new", supersedes="old", adjustments=Default("engine.seed", 1))

    plan = make_plan(old, new, force=("old",))

    assert plan.changes == {EAGER: True, "engine.seed": 1}
    assert verdict(plan, "old").because.startswith("forced by 'old'")


@pytest.fixture
def load_switched(fake_plugins, find_fakes):
    """Loads two distributions under the given switches."""
    fake_plugins("fake-acme", fake_one='QUIRK = make("fake-one")', fake_two='QUIRK = make("fake-two")')
    fake_plugins("fake-other", fake_three='@hookimpl\ndef quirks_declare():\n    return [make("fake-four")]')

    def load(disable, force=()):
        switches = Switches.gather(command_line=SwitchNames(disable, force), environ={})
        return Registry.load(find_fakes(), switches=switches), switches

    return load


@pytest.mark.parametrize("name", ["distribution:fake_acme", "third-party", "all"])
def test_a_distribution_that_is_off_is_not_imported(load_switched, make_context, name):
    registry, off = load_switched([name])

    left = ["fake-four"] if ":" in name else []
    assert [item.quirk.id for item in registry.loaded] == left
    assert {"fake_one", "fake_two", "fake_three"} & sys.modules.keys() == ({"fake_three"} if left else set())
    why = f"switched off by {name.replace('_', '-')!r} in the command line (--disable)"
    assert str(registry.skipped[0]) == f"plugin 'fake-one' of fake-acme 1.2 was not loaded: {why}"
    names = ", ".join(row.plugin.name for row in registry.skipped)
    assert registry.resolve(make_context(), off).warnings == (
        Note(kind=NoteKind.PLUGIN, text=f"{len(registry.skipped)} plugins ({names}) were not loaded: {why}"),
    )


@pytest.mark.parametrize(
    ("disable", "force", "active"),
    [
        (["distribution:fake-acme"], ["fake-two"], ["fake-four", "fake-two"]),
        (["third-party"], ["distribution:fake-other"], ["fake-four"]),
        (["fake-one"], [], ["fake-four", "fake-two"]),
        # A name is known although its distribution is off as well, be it an entry point's or one of several of a plugin.
        (["fake-one", "distribution:fake-acme"], [], ["fake-four"]),
        (["fake-four", "distribution:fake-other"], [], ["fake-one", "fake-two"]),
    ],
)
def test_what_is_forced_alone_is_loaded_beside_what_is_off(load_switched, make_context, disable, force, active):
    """So is what is off by its own name."""
    registry, switches = load_switched(disable, force)

    assert [item.id for item in registry.resolve(make_context(), switches).active] == active
