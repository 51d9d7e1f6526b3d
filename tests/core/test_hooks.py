"""The optional hooks: a plugin's facts and observers, each called on its own and by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from quirks_core import Plan, Registry, RunContext, Switches

LoadFakes = Callable[..., Registry]

SEVERAL = '@hookimpl\ndef quirks_declare():\n    return [make("fake-one"), make("fake-two")]\n\n'


def plugin_with(hook: str) -> str:
    """A plugin with a quirk and one more hook."""
    return f"{SEVERAL}@hookimpl\n{hook}\n"


def test_facts_of_a_plugin_carry_its_distributions_name(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    registry = load_fakes(
        fake_facts=plugin_with("def quirks_facts(context):\n    return {'nodes': 4, 'name': context.model.name}")
    )

    plan = registry.resolve(make_context(), Switches())

    assert plan.context.extra == {"fake-dist.nodes": 4, "fake-dist.name": "tiny-qwen3"}


def test_a_quirk_can_match_on_a_plugins_fact(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    asks = SEVERAL.replace('purpose("rollout")', 'Fact("fake-dist.nodes").above(2)').replace("purpose,", "Fact,")
    registry = load_fakes(fake_facts=asks + "@hookimpl\ndef quirks_facts():\n    return {'nodes': 4}\n")

    assert [verdict.id for verdict in registry.resolve(make_context(), Switches()).active] == ["fake-one", "fake-two"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise OSError('no network')", "OSError: no network"),
        ("return None", "must return JSON values by name"),
        ("return 3", "must return JSON values by name"),
        ("return {'thing': object()}", "must return JSON values by name"),
    ],
)
def test_a_facts_hook_that_fails_is_a_warning_and_the_plan_is_made(
    load_fakes: LoadFakes, make_context: Callable[..., RunContext], body: str, words: str
) -> None:
    plan = load_fakes(fake_facts=plugin_with(f"def quirks_facts():\n    {body}")).resolve(make_context(), Switches())

    (warning,) = plan.warnings
    assert warning.startswith("quirks_facts of fake-dist:fake-facts failed")
    assert words in warning
    assert (plan.context.extra, len(plan.active)) == ({}, 2)


def test_a_broken_plugin_supplies_no_facts(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    duplicate = plugin_with("def quirks_facts():\n    return {'nodes': 4}")
    registry = load_fakes(fake_pack=SEVERAL, fake_zweit=duplicate)

    plan = registry.resolve(make_context(), Switches())

    assert ([row.name for row in registry.broken], plan.context.extra) == (["fake-pack", "fake-zweit"], {})


def test_observers_see_plan_and_receipt(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    observer = "seen = []\n" + plugin_with("def quirks_observe(plan, receipt):\n    seen.append((plan.digest, receipt))")
    registry = load_fakes(fake_observer=observer)
    plan: Plan = registry.resolve(make_context(), Switches())

    troubles = registry.observe(plan, "receipt")

    assert (sys.modules["fake_observer"].seen, troubles) == ([(plan.digest, "receipt")], [])


def test_an_observer_that_fails_is_reported_and_the_others_still_see(
    load_fakes: LoadFakes, make_context: Callable[..., RunContext]
) -> None:
    fails = plugin_with("def quirks_observe():\n    raise OSError('no disk')")
    sees = "seen = []\n" + plugin_with("def quirks_observe(plan):\n    seen.append(plan.digest)").replace("fake-", "seen-")
    registry = load_fakes(fake_a_sees=sees, fake_fails=fails, fake_z_sees=sees.replace("seen-", "zeen-"))

    troubles = registry.observe(registry.resolve(make_context(), Switches()), "receipt")

    assert troubles == ["quirks_observe of fake-dist:fake-fails failed: OSError: no disk"]
    assert [len(sys.modules[name].seen) for name in ("fake_a_sees", "fake_z_sees")] == [1, 1]
