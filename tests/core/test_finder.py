"""A package whose files are quirks: what is found in it by names alone, and what is wrong with it."""

from __future__ import annotations

import sys

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.plan.records import State
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.lock import Lock
from quirks_core.plugins.registry import Registry

#: A file with a quirk; `%` stands for its id.
QUIRK = '''"""A file of one quirk."""
from quirks_core import *
QUIRK = Quirk(
    id="%",
    title="Something goes wrong",
    flag=ModelFlag.SLEEP,
    match=purpose("rollout"),
    adjustments=Default("engine.enforce_eager", True),
    severity=Severity.SLOW,
    references=report("https://example.org/1"),
)
'''
#: A file with two, and with what is none.
ROWS = (
    "".join(QUIRK.replace("QUIRK", name.upper()).replace("%", name) for name in ("one", "two")) + 'THREE = dict(id="three")\n'
)


@pytest.fixture
def package(fake_distribution, find_fakes, monkeypatch):
    """Installs a package by one entry point, with the given files, and returns what is found."""

    def install(value="fake_pack", **files):
        modules = {f"{name}.py": text for name, text in files.items()}
        init = {"fake_pack/__init__.py": "", "fake_pack/sub/__init__.py": ""}
        fake_distribution("fake-dist", entry_points={"any": value}, modules={**init, **modules})
        for name in [name for name in sys.modules if name.startswith("fake_pack.")]:
            monkeypatch.delitem(sys.modules, name)
        return find_fakes()

    return install


def quirk(name):
    """The source of a file with the quirk of that id."""
    return QUIRK.replace("%", name)


def load(found, *off):
    """Loads what was found, with quirks switched off by their names."""
    switches = Switches.gather(command_line=SwitchNames(off), environ={})
    return Registry.load(found, switches=switches), switches


def test_each_file_of_a_package_is_a_quirk_by_its_name(package):
    loud = "raise RuntimeError\nQUIRK: Quirk = make('whatever')\n"
    files = {
        "fake_pack/fake_one": quirk("fake-one"),
        "fake_pack/sub/fake_two": quirk("fake-dist/fake-two"),  # a third party's id may begin with its distribution
        "fake_pack/sub/fake_v1_5": quirk("fake-v1.5"),
        "fake_pack/loud": loud,
        "fake_pack/rules": ROWS,
        "fake_pack/helper": 'QUIRKS = 1\nother = [Quirk(id="three")]\n',
        "fake_pack/_private": loud,
        "fake_pack/fake_patches": loud,
        "fake_pack/not-a-module": loud,
        "fake_pack/__pycache__/cached": loud,
        "fake_pack/leftover/fake_gone": loud,
    }

    found = package(**files)

    assert [(item.name, item.entry_point.value) for item in found] == [
        ("fake-dist/fake-two", "fake_pack.sub.fake_two:QUIRK"),
        ("fake-one", "fake_pack.fake_one:QUIRK"),
        ("fake-v1.5", "fake_pack.sub.fake_v1_5:QUIRK"),
        ("loud", "fake_pack.loud:QUIRK"),
        ("one", "fake_pack.rules:ONE"),
        ("two", "fake_pack.rules:TWO"),
    ]
    assert not [name for name in sys.modules if name.startswith("fake_pack")]
    registry, _ = load(found)
    assert [item.quirk.id for item in registry.loaded] == [item.name for item in found if item.name != "loud"]
    assert [(row.plugin.name, row.error) for row in registry.broken] == [("loud", "fake_pack/loud.py:1: RuntimeError:")]


@pytest.mark.parametrize(("value", "name"), [("fake_pack.sub", "fake-one"), ("fake_pack.sub.fake_one:QUIRK", "any")])
def test_an_entry_point_may_name_a_part_of_a_package(package, value, name):
    found = package(value, **{"fake_pack/fake_two": quirk("fake-two"), "fake_pack/sub/fake_one": quirk(name)})

    assert [item.quirk.id for item in load(found)[0].loaded] == [name]


def test_a_package_with_a_hook_is_one_plugin_as_before(package):
    hook = f"{quirk('from-a-hook')}\n@hookimpl\ndef quirks_declare():\n    return [QUIRK]\n"

    found = package(**{"fake_pack/__init__": hook, "fake_pack/fake_one": quirk("fake-one")})

    assert ([item.name for item in found], [item.quirk.id for item in load(found)[0].loaded]) == (["any"], ["from-a-hook"])


@pytest.mark.parametrize("method", ["facts", "model_types"])
def test_a_match_whose_facts_cannot_be_read_breaks_its_plugin(package, method):
    own = f"class Own(Match):\n    def trace(self, facts): ...\n    def {method}(self): raise OSError('nothing')\n"
    bad = quirk("fake-bad").replace('purpose("rollout")', "Own()").replace("QUIRK = ", f"{own}QUIRK = ")

    registry, _ = load(package(**{"fake_pack/fake_bad": bad, "fake_pack/fake_one": quirk("fake-one")}))

    assert [row.error for row in registry.broken] == ["fake_pack/fake_bad.py:5: OSError: nothing"]
    assert [item.quirk.id for item in registry.loaded] == ["fake-one"]


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (
            ("fake_pack/fake_one", "fake_pack/sub/fake_one"),
            "fake_pack/fake_one.py and fake_pack/sub/fake_one.py both declare the quirk 'fake-one': rename one of them",
        ),
        (("fake_pack/fake_two",), "fake_pack/fake_two.py:3: the file is named 'fake-two' but the quirk's id is 'fake-one'"),
    ],
)
def test_a_wrong_name_is_one_error_with_its_place(package, files, error):
    (row,) = load(package(**{name: quirk("fake-one") for name in files}))[0].broken

    assert row.error == error


def test_a_quirk_that_is_off_by_its_name_is_not_imported(package, make_context):
    """It keeps its verdict, from what its source states."""
    found = package(**{f"fake_pack/{name}": quirk(name.replace("_", "-")) for name in ("fake_one", "fake_two")})
    locked = Lock.of(load(found)[0])
    del sys.modules["fake_pack.fake_one"]

    registry, switches = load(found, "fake-one")

    assert ("fake_pack.fake_one" in sys.modules, [item.quirk.id for item in registry.loaded]) == (False, ["fake-two"])
    plan = registry.resolve(make_context(), switches)
    first, second = plan.verdicts
    assert (first.id, first.state, first.flag, first.title) == ("fake-one", State.DISABLED, "sleep", "Something goes wrong")
    assert first.because == "switched off by 'fake-one' in the command line (--disable)"
    assert (second.state, plan.warnings, locked.differences(registry)) == (State.ACTIVE, (), ())
    with pytest.raises(UsageError, match=r"fake-one.* was not loaded: switched off by 'fake-one'"):
        registry.find("fake-one")
