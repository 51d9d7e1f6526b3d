"""The optional hooks: a plugin's facts and observers, each called on its own and by its name."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from quirks_core import hookimpl
from quirks_core.base.errors import BrokenPluginsError
from quirks_core.plan.records import NoteKind
from quirks_core.plugins.registry import Registry

SEVERAL = '@hookimpl\ndef quirks_declare():\n    return [make("fake-one"), make("fake-two")]\n\n'


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
