"""Two phases: metadata finds plugins without importing any, then each is loaded on its own and may break alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from quirks_core import Plan, Registry, RunContext, Switches, UsageError, discover

FakeDistribution = Callable[..., None]
LoadFakes = Callable[..., Registry]

QUIRK = """
from quirks_core import Default, Quirk, Severity, hookimpl, purpose, report

def make(name):
    return Quirk(
        id=name,
        title="Something goes wrong",
        flag="enforce_eager",
        match=purpose("rollout"),
        adjustments=Default("engine.enforce_eager", True),
        severity=Severity.SLOW,
        references=report("https://example.org/1"),
    )

"""
SEVERAL = QUIRK + '@hookimpl\ndef quirks_declare():\n    return [make("fake-one"), make("fake-two")]\n\n'


@pytest.fixture
def load_fakes(fake_distribution: FakeDistribution) -> LoadFakes:
    """Installs one distribution with a plugin per keyword, its source given, and loads all fakes."""

    def load(distribution: str = "fake-dist", /, **plugins: str) -> Registry:
        names = {name: name.replace("_", "-") for name in plugins}
        fake_distribution(
            distribution,
            entry_points={names[name]: f"{name}" + (":QUIRK" if "QUIRK =" in text else "") for name, text in plugins.items()},
            modules={f"{name}.py": text for name, text in plugins.items()},
        )
        return Registry.load(item for item in discover() if item.distribution.startswith("fake-"))

    return load


def ids(registry: Registry) -> list[str]:
    """The ids of what was loaded."""
    return [item.quirk.id for item in registry.loaded]


def test_discovering_imports_nothing(fake_distribution: FakeDistribution) -> None:
    fake_distribution("fake-loud", entry_points={"loud": "fake_loud:QUIRK"}, modules={"fake_loud.py": "raise RuntimeError\n"})

    (found,) = [item for item in discover() if item.distribution == "fake-loud"]

    assert (found.name, found.version, found.module) == ("loud", "1.2", "fake_loud")
    assert "fake_loud" not in sys.modules


def test_built_in_quirks_come_first_then_distributions_in_order(fake_distribution: FakeDistribution) -> None:
    for name in ("fake-z", "fake-a"):
        fake_distribution(name, entry_points={"two": "m:B", "one": "m:A"})

    found = discover()

    assert found[0].distribution == "model-quirks"
    assert [(item.distribution, item.name) for item in found if item.distribution.startswith("fake-")] == [
        ("fake-a", "one"),
        ("fake-a", "two"),
        ("fake-z", "one"),
        ("fake-z", "two"),
    ]


def test_the_same_distribution_twice_on_the_path_counts_once(
    fake_distribution: FakeDistribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_distribution("fake-dist", entry_points={"one": "m:A"})
    monkeypatch.setattr(sys, "path", [sys.path[0], *sys.path])

    assert len([item for item in discover() if item.distribution == "fake-dist"]) == 1


def test_an_entry_point_may_name_a_quirk(load_fakes: LoadFakes) -> None:
    registry = load_fakes(fake_one=QUIRK + 'QUIRK = make("fake-one")')

    (item,) = registry.loaded
    assert (item.quirk.id, item.distribution, item.version, item.entry_point) == ("fake-one", "fake-dist", "1.2", "fake-one")
    assert registry.broken == ()


def test_a_plugin_may_declare_several_quirks(load_fakes: LoadFakes) -> None:
    assert ids(load_fakes(fake_pack=SEVERAL)) == ["fake-one", "fake-two"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module\nQUIRK = 1\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:\nQUIRK = 1\n", "SyntaxError"),
        ("import sys\nsys.exit(3)\nQUIRK = 1\n", "SystemExit: 3"),
        ("other = 1  # QUIRK = 1\n", "AttributeError"),
        ("QUIRK = 'text'\n", "is neither a Quirk nor a plugin with a quirks_declare hook"),
        ("x = 1\n", "is neither a Quirk nor a plugin with a quirks_declare hook"),
        (QUIRK + 'QUIRK = make("another")', "the entry point is named 'fake-bad' but the quirk's id is 'another'"),
        (QUIRK + 'QUIRK = make("Not An Id")', "quirk 'Not An Id': the id must be"),
        (QUIRK + "@hookimpl\ndef quirks_declare():\n    raise OSError('no disk')\n", "OSError: no disk"),
        (QUIRK + "@hookimpl\ndef quirks_declare():\n    return None\n", "TypeError"),
        (QUIRK + "@hookimpl\ndef quirks_declare():\n    return [1]\n", "quirks_declare returned 1, which is no Quirk"),
        (QUIRK + "@hookimpl\ndef quirks_declare(colour):\n    return []\n", "colour"),
        (SEVERAL + "@hookimpl\ndef quirks_fact(context):\n    return {}\n", "unknown hook 'quirks_fact'"),
        (SEVERAL.replace("fake-two", "fake-one"), "quirk id 'fake-one' is taken by fake-dist 1.2"),
    ],
)
def test_a_broken_plugin_is_one_named_row_and_the_others_work(load_fakes: LoadFakes, source: str, words: str) -> None:
    registry = load_fakes(fake_bad=source, fake_good=QUIRK + 'QUIRK = make("fake-good")')

    (row,) = registry.broken
    assert (row.name, row.distribution, row.version) == ("fake-bad", "fake-dist", "1.2")
    assert words in row.error
    assert ids(registry) == ["fake-good"]


def test_a_broken_plugin_reads_as_who_where_and_why(load_fakes: LoadFakes) -> None:
    registry = load_fakes(fake_bad="QUIRK = 'text'\n")

    assert str(registry.broken[0]) == (
        "plugin 'fake-bad' of fake-dist 1.2 (fake_bad:QUIRK) is broken: "
        "fake_bad:QUIRK is neither a Quirk nor a plugin with a quirks_declare hook"
    )


def test_a_malformed_entry_point_is_a_broken_plugin(fake_distribution: FakeDistribution) -> None:
    fake_distribution("fake-dist", entry_points={"bad": "not a module !"})

    registry = Registry.load(item for item in discover() if item.distribution == "fake-dist")

    assert [row.name for row in registry.broken] == ["bad"]


def test_an_id_that_is_taken_breaks_the_second_plugin_and_names_the_first(
    load_fakes: LoadFakes, fake_distribution: FakeDistribution
) -> None:
    taken = QUIRK + 'QUIRK = make("same-id")'
    fake_distribution("fake-first", entry_points={"same-id": "fake_first:QUIRK"}, modules={"fake_first.py": taken})

    registry = load_fakes("fake-second", same_id=taken)

    assert [item.distribution for item in registry.loaded] == ["fake-first"]
    assert "quirk id 'same-id' is taken by fake-first 1.2" in registry.broken[0].error


def test_equal_quirks_of_two_distributions_can_both_be_registered(
    load_fakes: LoadFakes, fake_distribution: FakeDistribution
) -> None:
    shared = QUIRK + "ONE, TWO = make('same-one'), make('same-two')\n"
    fake_distribution("fake-shared", modules={"fake_shared.py": shared})

    registry = load_fakes(
        same_one="from fake_shared import ONE\nQUIRK = ONE", same_two="from fake_shared import TWO\nQUIRK = TWO"
    )

    assert ids(registry) == ["same-one", "same-two"]


def test_a_quirk_is_found_by_its_id(load_fakes: LoadFakes) -> None:
    assert load_fakes(fake_pack=SEVERAL).find("fake-two").quirk.id == "fake-two"


def test_an_unknown_id_is_an_error_with_the_nearest_name(load_fakes: LoadFakes) -> None:
    with pytest.raises(UsageError, match="no quirk 'fake-too'; did you mean 'fake-two'"):
        load_fakes(fake_pack=SEVERAL).find("fake-too")


def test_a_broken_plugin_is_a_warning_of_the_plan(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    plan = load_fakes(fake_bad="QUIRK = 1\n", fake_pack=SEVERAL).resolve(make_context(), Switches({}))

    assert (plan.value("engine.enforce_eager"), len(plan.warnings)) == (True, 1)
    assert plan.warnings[0].startswith("plugin 'fake-bad' of fake-dist 1.2")


def test_a_broken_plugin_can_be_switched_off_by_name(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    load_fakes(fake_bad="QUIRK = 1\n").resolve(make_context(), Switches({"fake-bad": "the command line"}))


def test_a_switch_that_names_nothing_is_an_error(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    with pytest.raises(UsageError, match="'fake-too' in the command line; did you mean 'fake-two'"):
        load_fakes(fake_pack=SEVERAL).resolve(make_context(), Switches({"fake-too": "the command line"}))


def plugin_with(hook: str) -> str:
    """A plugin with a quirk and one more hook."""
    return f"{SEVERAL}@hookimpl\n{hook}\n"


def test_facts_of_a_plugin_carry_its_distributions_name(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    registry = load_fakes(
        fake_facts=plugin_with("def quirks_facts(context):\n    return {'nodes': 4, 'name': context.model.name}")
    )

    plan = registry.resolve(make_context(), Switches({}))

    assert plan.context.extra == {"fake-dist.nodes": 4, "fake-dist.name": "tiny-qwen3"}


def test_a_quirk_can_match_on_a_plugins_fact(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    asks = SEVERAL.replace('purpose("rollout")', 'Fact("fake-dist.nodes").above(2)').replace("purpose,", "Fact,")
    registry = load_fakes(fake_facts=asks + "@hookimpl\ndef quirks_facts():\n    return {'nodes': 4}\n")

    assert [verdict.id for verdict in registry.resolve(make_context(), Switches({})).active] == ["fake-one", "fake-two"]


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
    plan = load_fakes(fake_facts=plugin_with(f"def quirks_facts():\n    {body}")).resolve(make_context(), Switches({}))

    (warning,) = plan.warnings
    assert warning.startswith("quirks_facts of fake-dist:fake-facts failed")
    assert words in warning
    assert (plan.context.extra, len(plan.active)) == ({}, 2)


def test_a_broken_plugin_supplies_no_facts(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    duplicate = plugin_with("def quirks_facts():\n    return {'nodes': 4}")
    registry = load_fakes(fake_pack=SEVERAL, fake_zweit=duplicate)

    plan = registry.resolve(make_context(), Switches({}))

    assert ([row.name for row in registry.broken], plan.context.extra) == (["fake-zweit"], {})


def test_observers_see_plan_and_receipt(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    observer = "seen = []\n" + plugin_with("def quirks_observe(plan, receipt):\n    seen.append((plan.digest, receipt))")
    registry = load_fakes(fake_observer=observer)
    plan: Plan = registry.resolve(make_context(), Switches({}))

    troubles = registry.observe(plan, "receipt")

    assert (sys.modules["fake_observer"].seen, troubles) == ([(plan.digest, "receipt")], [])


def test_an_observer_that_fails_is_reported_and_the_others_still_see(
    load_fakes: LoadFakes, make_context: Callable[..., RunContext]
) -> None:
    fails = plugin_with("def quirks_observe():\n    raise OSError('no disk')")
    sees = "seen = []\n" + plugin_with("def quirks_observe(plan):\n    seen.append(plan.digest)").replace("fake-", "seen-")
    registry = load_fakes(fake_a_sees=sees, fake_fails=fails, fake_z_sees=sees.replace("seen-", "zeen-"))

    troubles = registry.observe(registry.resolve(make_context(), Switches({})), "receipt")

    assert troubles == ["quirks_observe of fake-dist:fake-fails failed: OSError: no disk"]
    assert [len(sys.modules[name].seen) for name in ("fake_a_sees", "fake_z_sees")] == [1, 1]


def test_two_registries_do_not_share_plugins(load_fakes: LoadFakes) -> None:
    first = load_fakes(fake_pack=SEVERAL)

    second = Registry.load([])

    assert (len(first.loaded), len(second.loaded)) == (2, 0)
