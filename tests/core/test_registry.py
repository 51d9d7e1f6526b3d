"""Two phases: metadata finds plugins without importing any, then each is loaded on its own and may break alone."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from quirks_core import hookimpl
from quirks_core.base.errors import BrokenPluginsError, UsageError
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
    assert (words in row.error, len(row.error) < 600, "\n" in row.error) == (True, True, False)
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
    load_fakes(double_bos='QUIRK = make("double-bos")')

    registry = Registry.load([item for item in discover() if item.name == "double-bos"][::order])

    assert [item.distribution for item in registry.loaded] == ["model-quirks"]
    assert [row.plugin.distribution for row in registry.broken] == ["fake-dist"]
    assert "quirk id 'double-bos' is taken by model-quirks" in registry.broken[0].error


def test_a_switch_may_name_a_broken_plugin_but_not_nothing(load_fakes, make_context):
    off = Switches.gather(command_line=SwitchNames(["fake-bad"]), environ={})

    load_fakes(fake_bad="QUIRK = 1\n").resolve(make_context(), off)

    with pytest.raises(UsageError, match=r"'fake-bad' in the command line \(--disable\)"):
        Registry.load([]).resolve(make_context(), off)


def test_strict_loading_lists_every_broken_plugin_in_one_error(fake_plugins, fake_distribution, find_fakes):
    """An entry point that names no module is one."""
    fake_plugins(fake_good=GOOD, fake_import="import no_such_module\nQUIRK = 1")
    fake_distribution("fake-malformed", entry_points={"fake-entry": "not a module !"})

    with pytest.raises(BrokenPluginsError) as error:
        Registry.load(find_fakes(), strict=True)

    assert [line.split("'")[1] for line in str(error.value).splitlines()[1:]] == ["fake-import", "fake-entry"]
    assert "'not a module !' is not of the form package.module:attribute" in str(error.value)
    assert (len(error.value.problems), error.value.exit_code) == (2, 3)


# ---- the optional hooks: facts and observers, each called on its own and by its name


def plugin_with(hook, prefix="fake-"):
    """A plugin with two quirks and one more hook."""
    return f"{SEVERAL.replace('fake-', prefix)}@hookimpl\n{hook}\n"


def gives(facts, prefix):
    """A plugin with two quirks that gives facts."""
    return plugin_with(f"def quirks_facts():\n    return {facts}", prefix)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise OSError('no network')", "OSError: no network"),
        ("raise SystemExit(4)", "SystemExit: 4"),
        ("return None", "must return JSON values by name"),
        ("return {'a': float('nan')}", "must return JSON values by name"),
    ],
)
def test_a_facts_hook_that_fails_is_a_warning_unless_strict(load_fakes, make_context, find_fakes, body, words):
    plan = load_fakes(fake_facts=plugin_with(f"def quirks_facts():\n    {body}")).resolve(make_context())

    with pytest.raises(BrokenPluginsError, match="quirks_facts of fake-dist:fake-facts failed"):
        Registry.load(find_fakes(), strict=True).resolve(make_context())

    (warning,) = plan.warnings
    assert warning.kind is NoteKind.HOOK
    assert (warning.text.startswith("quirks_facts of fake-dist:fake-facts failed: "), words in warning.text) == (True, True)
    assert (plan.context.extra, len(plan.active)) == ({}, 2)


@pytest.mark.parametrize(("distribution", "key"), [("model", "name"), ("engine", "load_format"), ("env", "NAME")])
def test_a_plugins_fact_cannot_stand_for_one_of_ours(quirk_registry, make_context, make_quirk, distribution, key):
    plugin = SimpleNamespace(
        quirks_declare=hookimpl(lambda: [make_quirk()], specname="quirks_declare"),
        quirks_facts=hookimpl(lambda: {key: "other"}, specname="quirks_facts"),
    )

    plan = quirk_registry.add(plugin, distribution=distribution).resolve(make_context())

    assert plan.context.extra == {}
    (note,) = plan.warnings
    assert f"{distribution}.{key} is a fact of every run, not a plugin's to give" in note.text


def test_broken_plugins_give_no_facts_contested_ones_are_unknown(load_fakes, make_context):
    given = {"fake_a": gives({"n": 1, "same": 1}, "a-"), "fake_b": gives({"n": 2, "same": 1}, "b-")}
    broken = {name: gives({"broken": 1}, "c-") for name in ("fake_c", "fake_d")}
    registry = load_fakes(**given, **broken)

    plan = registry.resolve(make_context())

    assert ([row.plugin.name for row in registry.broken], plan.context.extra) == (["fake-c", "fake-d"], {"fake-dist.same": 1})
    assert plan.warnings[-1].text == "fact fake-dist.n is unknown: two plugins of its distribution give it different values"


def test_an_observer_that_fails_keeps_nothing_from_the_others(load_fakes, make_context):
    sees = "def quirks_observe(plan, receipt):\n    seen.append((plan.digest, receipt))\n    return object()"
    registry = load_fakes(
        fake_a_sees="seen = []\n" + plugin_with(sees, "a-"),
        fake_fails=plugin_with("def quirks_observe():\n    raise OSError('no disk')", "fails-"),
        fake_leaves=plugin_with("def quirks_observe():\n    raise SystemExit(4)", "leaves-"),
        fake_z_sees="seen = []\n" + plugin_with(sees, "z-"),
    )
    plan = registry.resolve(make_context())

    troubles = registry.observe(plan, "receipt")

    assert troubles == [
        "quirks_observe of fake-dist:fake-fails failed: fake_fails.py:22: OSError: no disk",
        "quirks_observe of fake-dist:fake-leaves failed: fake_leaves.py:22: SystemExit: 4",
    ]
    assert [sys.modules[name].seen for name in ("fake_a_sees", "fake_z_sees")] == [[(plan.digest, "receipt")]] * 2
