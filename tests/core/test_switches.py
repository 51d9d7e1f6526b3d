"""Switches: a stronger layer wins, then the more specific name; no name is silently ignored."""

from __future__ import annotations

import itertools
import sys

import pytest

from quirks_core import Affected, Default, Fact, model_type
from quirks_core.base.errors import UsageError
from quirks_core.declaration.trace import Answer
from quirks_core.plan.records import Note, NoteKind, State, Switch
from quirks_core.plan.switches import DISABLE_VARIABLE, FORCE_VARIABLE, Switches, SwitchNames
from quirks_core.plugins.registry import Registry

#: The layers, strongest first, with the words that a plan has for them.
WORDS = {
    "call": ("the call (disable=)", "the call (force=)"),
    "command_line": ("the command line (--disable)", "the command line (--force)"),
    "environ": (f"the environment ({DISABLE_VARIABLE})", f"the environment ({FORCE_VARIABLE})"),
    "config_file": ("the configuration (quirks.disable)", "the configuration (quirks.force)"),
}
#: The names that take in the quirk of these tests, the most specific first.
NAMES = ("example", "enforce_eager", "distribution:acme-quirks", "third-party", "all")


def gather(*asked):
    """Collects switches given as layer, name and whether it turns on."""
    names = {layer: ([], []) for layer in WORDS}
    for layer, name, on in asked:
        names[layer][on].append(name)
    environ = dict(zip((DISABLE_VARIABLE, FORCE_VARIABLE), map(",".join, names.pop("environ")), strict=True))
    return Switches.gather(environ=environ, **{layer: SwitchNames(*both) for layer, both in names.items()})


def off(name):
    """The switches of a call that turns a name off."""
    return gather(("call", name, False))


@pytest.fixture
def item(make_quirk, loaded):
    """A third party's quirk."""
    return loaded(make_quirk(), "Acme_Quirks")


@pytest.mark.parametrize("on", [False, True])
def test_a_stronger_layer_wins_and_within_it_the_specific_name(item, on):
    assert Switches.gather(environ={}).of(item) is None  # the declaration decides
    places = list(itertools.product(WORDS, NAMES))
    for layer, name in places:
        switch = gather((layer, name, on)).of(item)

        assert switch == Switch(on=on, name=name, layer=WORDS[layer][on])
        assert str(switch) == f"{'forced' if on else 'switched off'} by {name!r} in {WORDS[layer][on]}"
    for (layer, name), weaker in itertools.combinations(places, 2):
        assert gather((*weaker, not on), (layer, name, on)).of(item) == Switch(on=on, name=name, layer=WORDS[layer][on])


def test_a_layer_that_is_put_on_top_wins_over_all_others(item):
    below = off("example")

    switch = below.under(SwitchNames(force=["example"]), "the parity run").of(item)
    assert switch == Switch(on=True, name="example", layer="the parity run")
    assert below.under(SwitchNames(force=["other"]), "the parity run").of(item) == below.of(item)


@pytest.mark.parametrize("layer", WORDS)
def test_a_layer_cannot_contradict_itself(layer):
    with pytest.raises(UsageError) as error:
        gather((layer, "all", False), (layer, "all", True))

    assert [words for words in ("'all'", *WORDS[layer]) if words not in str(error.value)] == []


def test_a_switch_reads_each_kind_of_name_by_its_own_rules(item):
    written = (
        "ENFORCE_EAGER",
        "Enforce_Eager",
        *(f"distribution:{name}" for name in ("Acme_Quirks", "acme.quirks", "ACME--quirks")),
    )

    assert [name for name in written if off(name).of(item) is None or off(name).check([item])] == []
    assert [name for name in ("Example", "other", "load_format", "distribution:other") if off(name).of(item)] == []


def test_our_own_quirks_are_no_third_partys(make_quirk, loaded):
    ours = loaded(make_quirk(), "model-quirks")

    assert [bool(off(name).of(ours)) for name in ("third-party", "distribution:model-quirks", "all")] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "names"), [(" a , b ", {"a", "b"}), ("a,,b,", {"a", "b"}), ("a\n", {"a"}), ("", set()), (" ,", set())]
)
def test_a_variable_lists_names_between_commas(monkeypatch, text, names):
    for variable in (DISABLE_VARIABLE, FORCE_VARIABLE):
        monkeypatch.setenv(DISABLE_VARIABLE, "")
        monkeypatch.setenv(FORCE_VARIABLE, "")
        monkeypatch.setenv(variable, text)

        assert set().union(*Switches.gather().layers) == set().union(*Switches.gather(environ={variable: text}).layers) == names


def test_the_name_of_anything_installed_is_known(item, make_quirk, loaded):
    other = loaded(make_quirk(id="other", flag="acme-quirks:own"), "acme-quirks")
    names = (*NAMES, "load_format", "distribution:model-quirks", "acme-quirks:own", "broken-one")

    assert [name for name in names if off(name).check([item, other], [("broken-one", "broken-dist")])] == []


def test_a_name_that_a_plugin_may_have_is_a_warning(item):
    """A plugin that was not loaded; an unknown distribution stays an error."""
    not_loaded = [("broken-one", "broken-dist")]

    (warning,) = off("exampel").check([item], not_loaded)

    assert warning.startswith("no quirk of that name, unless a plugin that was not loaded has it: 'exampel' in the call")
    assert warning.endswith("did you mean 'example'?")
    with pytest.raises(UsageError, match="did you mean 'distribution:acme-quirks'"):
        off("distribution:acme-quirk").check([item], not_loaded)


def test_all_unknown_names_are_reported_in_one_error(item):
    asked = [
        ("command_line", "exampel", False, "example"),
        ("environ", "load_fromat", False, "load_format"),
        ("config_file", "distribution:acme-quirk", True, "distribution:acme-quirks"),
        ("call", "third-parties", True, "third-party"),
    ]

    with pytest.raises(UsageError) as error:
        gather(*(one[:3] for one in asked)).check([item])

    for layer, name, on, nearest in asked:
        assert f"{name!r} in {WORDS[layer][on]}; did you mean {nearest!r}?" in str(error.value)


# ---- what switches do to a plan: forced quirks act whatever they say themselves, and what is off is not even imported


EAGER = "engine.enforce_eager"


def verdict(plan, quirk="example"):
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


@pytest.mark.parametrize(
    "declaration",
    [{"match": model_type("gemma3")}, {"affected": Affected("vllm", fixed="0.9.2")}, {"match": Fact("weather").is_true()}],
    ids=["not matched", "dormant", "unknown"],
)
def test_a_forced_quirk_is_active_whatever_its_own_answer(make_plan, make_quirk, declaration):
    quirk = make_quirk(**declaration)
    own, forced = make_plan(quirk), make_plan(quirk, force=("example",))

    assert (own.value(EAGER), forced.value(EAGER), verdict(forced).state) == (None, True, State.ACTIVE)
    assert (verdict(forced).verdict, verdict(forced).trace) == (verdict(own).verdict, verdict(own).trace)
    assert verdict(forced).verdict is not Answer.YES
    assert verdict(forced).because == f"forced by 'example' in the command line (--force); {verdict(own).because}"


@pytest.mark.parametrize("name", ["example", "ENFORCE_EAGER", "third-party"])
def test_a_disabled_quirk_says_who_switched_it_off(make_plan, make_quirk, name):
    for match in ({}, {"match": Fact("weather").is_true()}):
        plan = make_plan(make_quirk(**match), disable=(name,))

        assert verdict(plan).because == f"switched off by {name.lower()!r} in the command line (--disable)"
        assert (verdict(plan).switch.on, verdict(plan).switch.name) == (False, name.lower())
        assert (verdict(plan).state, plan.adjustments, plan.warnings) == (State.DISABLED, (), ())


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
