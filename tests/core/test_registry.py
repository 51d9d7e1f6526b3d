"""Two phases: metadata finds plugins without importing any, then each is loaded on its own and may break alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from quirks_core import Registry, RunContext, Switches, UsageError, Wishes, discover

FakeDistribution = Callable[..., None]
LoadFakes = Callable[..., Registry]

SEVERAL = '@hookimpl\ndef quirks_declare():\n    return [make("fake-one"), make("fake-two")]\n\n'


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
    registry = load_fakes(fake_one='QUIRK = make("fake-one")')

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
        ('QUIRK = make("another")', "the entry point is named 'fake-bad' but the quirk's id is 'another'"),
        ('QUIRK = make("Not An Id")', "quirk 'Not An Id': the id must be"),
        ("@hookimpl\ndef quirks_declare():\n    raise OSError('no disk')\n", "OSError: no disk"),
        ("@hookimpl\ndef quirks_declare():\n    return None\n", "TypeError"),
        ("@hookimpl\ndef quirks_declare():\n    return [1]\n", "quirks_declare returned 1, which is no Quirk"),
        ("@hookimpl\ndef quirks_declare(colour):\n    return []\n", "colour"),
        (SEVERAL + "@hookimpl\ndef quirks_fact(context):\n    return {}\n", "unknown hook 'quirks_fact'"),
        (SEVERAL.replace("fake-two", "fake-one"), "quirk id 'fake-one' is taken by fake-dist 1.2"),
    ],
)
def test_a_broken_plugin_is_one_named_row_and_the_others_work(load_fakes: LoadFakes, source: str, words: str) -> None:
    registry = load_fakes(fake_bad=source, fake_good='QUIRK = make("fake-good")')

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


def test_an_id_that_two_third_parties_declare_breaks_both_and_each_names_the_other(
    load_fakes: LoadFakes, fake_distribution: FakeDistribution, plugin_prelude: str
) -> None:
    for name in ("first", "second"):
        source = f'{plugin_prelude}QUIRK = make("same-id")'
        fake_distribution(
            f"fake-{name}", entry_points={"same-id": f"{name}_pack:QUIRK"}, modules={f"{name}_pack/__init__.py": source}
        )

    registry = load_fakes(fake_good='QUIRK = make("fake-good")')

    assert [item.quirk.id for item in registry.loaded] == ["fake-good"]
    errors = {row.distribution: row.error for row in registry.broken}
    assert "quirk id 'same-id' is taken by fake-second 1.2 (second_pack/__init__.py:" in errors["fake-first"]
    assert "quirk id 'same-id' is taken by fake-first 1.2 (first_pack/__init__.py:" in errors["fake-second"]


@pytest.mark.parametrize("backwards", [False, True])
def test_an_id_of_ours_stays_ours_whoever_loads_first(load_fakes: LoadFakes, backwards: bool) -> None:
    load_fakes(v1_runtime='QUIRK = make("v1-runtime")')
    found = [item for item in discover() if item.name == "v1-runtime"]

    registry = Registry.load(found[::-1] if backwards else found)

    assert [item.distribution for item in registry.loaded] == ["model-quirks"]
    assert [row.distribution for row in registry.broken] == ["fake-dist"]
    assert "quirk id 'v1-runtime' is taken by model-quirks" in registry.broken[0].error


def test_two_distributions_may_use_one_entry_point_name(load_fakes: LoadFakes, fake_distribution: FakeDistribution) -> None:
    pack = "from quirks_core import *\nfrom fake_pack import make\n@hookimpl\ndef quirks_declare():\n    return [make('two')]\n"
    fake_distribution("fake-other", entry_points={"fake-pack": "fake_other_pack"}, modules={"fake_other_pack.py": pack})

    registry = load_fakes(fake_pack=SEVERAL)

    assert {(item.quirk.id, item.distribution, item.entry_point) for item in registry.loaded} == {
        ("fake-one", "fake-dist", "fake-pack"),
        ("fake-two", "fake-dist", "fake-pack"),
        ("two", "fake-other", "fake-pack"),
    }
    assert registry.broken == ()


def test_equal_quirks_of_two_distributions_can_both_be_registered(
    load_fakes: LoadFakes, fake_distribution: FakeDistribution, plugin_prelude: str
) -> None:
    shared = plugin_prelude + "ONE, TWO = make('same-one'), make('same-two')\n"
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
    plan = load_fakes(fake_bad="QUIRK = 1\n", fake_pack=SEVERAL).resolve(make_context(), Switches())

    assert (plan.value("engine.enforce_eager"), len(plan.warnings)) == (True, 1)
    assert plan.warnings[0].startswith("plugin 'fake-bad' of fake-dist 1.2")


def switched_off(name: str) -> Switches:
    """The switches of a command line that turns one name off."""
    return Switches.gather(command_line=Wishes([name]), environ={})


def test_a_broken_plugin_can_be_switched_off_by_name(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    load_fakes(fake_bad="QUIRK = 1\n").resolve(make_context(), switched_off("fake-bad"))


def test_a_switch_that_names_nothing_is_an_error(load_fakes: LoadFakes, make_context: Callable[..., RunContext]) -> None:
    with pytest.raises(UsageError, match=r"'fake-too' in the command line \(--disable\); did you mean 'fake-two'"):
        load_fakes(fake_pack=SEVERAL).resolve(make_context(), switched_off("fake-too"))


def test_two_registries_do_not_share_plugins(load_fakes: LoadFakes) -> None:
    first = load_fakes(fake_pack=SEVERAL)

    second = Registry.load([])

    assert (len(first.loaded), len(second.loaded)) == (2, 0)
