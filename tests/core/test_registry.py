"""Two phases: metadata finds plugins without importing any, then each is loaded on its own and may break alone."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.plan.records import Note, NoteKind
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry

HOOK = "@hookimpl\ndef quirks_declare():\n    "
SEVERAL = f'{HOOK}return [make("fake-one"), make("fake-two")]\n\n'
GOOD = 'QUIRK = make("fake-good")'


def ids(registry):
    """The ids of what was loaded."""
    return [item.quirk.id for item in registry.loaded]


def test_an_entry_point_that_names_no_module_is_a_row(fake_distribution, fake_plugins):
    fake_plugins(fake_good=GOOD)
    fake_distribution("fake-malformed", entry_points={"bad": "not a module !"})

    registry = Registry.load(item for item in discover() if item.distribution.startswith("fake"))

    assert ids(registry) == ["fake-good"]
    assert [row.error for row in registry.broken] == ["'not a module !' is not of the form package.module:attribute"]


def test_an_entry_point_may_name_a_quirk_or_a_plugin(load_fakes, fake_distribution):
    other = f"from fake_pack import *\n{HOOK}return [make('two')]\n"
    fake_distribution("fake-other", entry_points={"fake-pack": "fake_other"}, modules={"fake_other.py": other})

    registry = load_fakes(fake_good=GOOD, fake_pack=SEVERAL)

    assert [(item.quirk.id, item.distribution, item.version, item.entry_point) for item in registry.loaded] == [
        ("fake-good", "fake-dist", "1.2", "fake-good"),
        ("fake-one", "fake-dist", "1.2", "fake-pack"),
        ("fake-two", "fake-dist", "1.2", "fake-pack"),
        ("two", "fake-other", "1.2", "fake-pack"),
    ]
    assert (registry.broken, registry.find("fake-two").quirk.id) == ((), "fake-two")
    with pytest.raises(UsageError, match="no quirk 'fake-too'; did you mean 'fake-two'"):
        registry.find("fake-too")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module\nQUIRK = 1\n", "fake_bad.py:16: ModuleNotFoundError: No module named 'no_such_module'"),
        ("QUIRK = make('fake-bad', title='')", "fake_bad.py:14: quirk 'fake-bad': the title is empty"),
        ("def broken(:\nQUIRK = 1\n", "SyntaxError"),
        ("import sys\nsys.exit(3)\nQUIRK = 1\n", "SystemExit: 3"),
        ("QUIRK = 'text'\n", "fake_bad:QUIRK is neither a Quirk nor a plugin with a quirks_declare hook"),
        ('QUIRK = make("another")', "the entry point is named 'fake-bad' but the quirk's id is 'another'"),
        (f"{HOOK}raise OSError('no disk')\n", "OSError: no disk"),
        (f"{HOOK}return [3]\n", "quirks_declare returned 3, which is no Quirk"),
        ("@hookimpl\ndef quirks_declare(colour):\n    return []\n", "colour"),
        (SEVERAL + "@hookimpl\ndef quirks_fact(context):\n    return {}\n", "unknown hook 'quirks_fact'"),
        (SEVERAL.replace("fake-two", "fake-one"), "quirk id 'fake-one' is taken by fake-dist 1.2"),
    ],
)
def test_a_broken_plugin_is_one_row_beside_the_others(load_fakes, make_context, source, words):
    registry = load_fakes(fake_bad=source, fake_good=GOOD)

    (row,) = registry.broken
    assert (row.plugin.name, row.plugin.distribution, row.plugin.version, words in row.error) == (
        "fake-bad",
        "fake-dist",
        "1.2",
        True,
    )
    assert (len(row.error) < 600, "\n" in row.error) == (True, False)
    assert str(row) == f"plugin 'fake-bad' of fake-dist 1.2 ({row.plugin.entry_point.value}) is broken: {row.error}"
    plan = registry.resolve(make_context())
    assert [verdict.id for verdict in plan.active] == ["fake-good"]
    assert plan.warnings == (Note(kind=NoteKind.PLUGIN, text=str(row)),)


def test_the_user_can_interrupt_a_plugin(load_fakes):
    with pytest.raises(KeyboardInterrupt):
        load_fakes(fake_bad="raise KeyboardInterrupt\nQUIRK = 1")


def test_an_id_that_two_third_parties_declare_breaks_both(load_fakes):
    for name in ("first", "second"):
        load_fakes(f"fake-{name}", **{f"{name}_pack": f'{HOOK}return [make("same-id")]'})

    registry = load_fakes(fake_good=GOOD)

    errors = {row.plugin.distribution: row.error for row in registry.broken}
    assert "quirk id 'same-id' is taken by fake-second 1.2 (" in errors["fake-first"]
    assert "quirk id 'same-id' is taken by fake-first 1.2 (" in errors["fake-second"]
    assert ids(registry) == ["fake-good"]


@pytest.mark.parametrize("order", [1, -1])
def test_an_id_of_ours_stays_ours_whoever_loads_first(load_fakes, order):
    load_fakes(v1_runtime='QUIRK = make("v1-runtime")')

    registry = Registry.load([item for item in discover() if item.name == "v1-runtime"][::order])

    assert [item.distribution for item in registry.loaded] == ["model-quirks"]
    assert [row.plugin.distribution for row in registry.broken] == ["fake-dist"]
    assert "quirk id 'v1-runtime' is taken by model-quirks" in registry.broken[0].error


def test_a_switch_may_name_a_broken_plugin_but_not_nothing(load_fakes, make_context):
    off = Switches.gather(command_line=SwitchNames(["fake-bad"]), environ={})

    load_fakes(fake_bad="QUIRK = 1\n").resolve(make_context(), off)

    with pytest.raises(UsageError, match=r"'fake-bad' in the command line \(--disable\)"):
        Registry.load([]).resolve(make_context(), off)


def test_two_registries_do_not_share_plugins(load_fakes, make_context):
    first = load_fakes(fake_pack=f"{SEVERAL}@hookimpl\ndef quirks_facts():\n    return {{'a': 1}}\n")

    second = Registry.load([])

    assert (len(first.loaded), len(second.loaded)) == (2, 0)
    assert [len(registry.resolve(make_context()).context.extra) for registry in (first, second)] == [1, 0]
