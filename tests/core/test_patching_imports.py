"""Patches on modules that are imported later, and on names that other modules took by ``from … import``."""

from __future__ import annotations

import importlib
import sys

import pytest

from quirks_core import Patch
from quirks_core.apply import imports, patching
from quirks_core.apply.patching import InstalledPatch, install
from quirks_core.base.errors import QuirksError
from quirks_core.source.vllm_source import INSTALLED

ENGINE = 'def top():\n    return "top"\n\n\nclass Engine:\n    def step(self):\n        return "step"\n'
PATCHES = """
def wrap(original):
    return lambda *args: f"patched {original(*args)}"

def fail(original):
    raise RuntimeError("cannot make it")
"""
TARGET = "fake_engine.module:top"


@pytest.fixture(autouse=True)
def fake_modules(write_modules):
    """An engine and modules that use it; no patch and no finder outlives its test."""
    early = "from fake_engine.module import top as original_top\n\ndef new():\n    return f'new {original_top()}'\n"
    write_modules(
        {
            "fake_engine/__init__.py": "",
            "fake_engine/module.py": ENGINE,
            "fake_user.py": "from fake_engine.module import top\nfrom fake_engine.module import top as other_name\n",
            "fake_early_patches.py": early,
            "fake_late_patches.py": PATCHES,
        }
    )
    yield
    for site in list(patching._sites.values()):
        for quirk in list(site.patches):
            InstalledPatch(site.patches[quirk], quirk, "").undo()
    assert not is_watching()


def is_watching():
    """A patch waits for the import of the module."""
    return "fake_engine.module" in imports._finder.waiting


def late(path, name="wrap"):
    """A wrapper whose code imports nothing of the engine."""
    target = f"fake_engine.module:{path}"
    return Patch(target, wrapper=f"fake_late_patches:{name}", expects=INSTALLED.fingerprint(target))


def test_a_later_module_is_patched_before_others_take_its_names():
    installed = install(late("top"), "q")
    assert (installed.is_pending, "fake_engine.module" in sys.modules, is_watching()) == (True, False, True)

    user = importlib.import_module("fake_user")

    assert (user.top(), user.other_name(), sys.modules["fake_engine.module"].top()) == ("patched top",) * 3
    assert (installed.is_pending, is_watching()) == (False, False)


def test_every_patch_of_a_module_that_is_imported_later_comes_into_force():
    for quirk, path in (("a", "top"), ("b", "Engine.step"), ("c", "top")):
        install(late(path), quirk)

    module = importlib.import_module("fake_engine.module")

    assert (module.top(), module.Engine().step()) == ("patched patched top", "patched step")


def test_a_pending_patch_that_is_undone_never_comes_into_force():
    first, second = install(late("top"), "a"), install(late("Engine.step"), "b")

    first.undo()

    module = importlib.import_module("fake_engine.module")
    assert (module.top(), module.Engine().step(), second.is_pending, is_watching()) == ("top", "patched step", False, False)


def test_other_modules_are_imported_as_ever_while_a_patch_waits():
    install(late("top"), "q")

    other = importlib.import_module("fake_late_patches")

    assert "exec_module" not in vars(other.__spec__.loader)
    assert is_watching()


def test_a_module_cannot_be_patched_while_it_is_being_imported(write_modules):
    modules = {"Patch": "declaration.adjustments", "install": "apply.patching", "INSTALLED": "source.vllm_source"}
    source = "".join(f"from quirks_core.{module} import {name}\n" for name, module in modules.items())
    target = "fake_selfish:top"
    itself = f"install(Patch('{target}', wrapper='fake_late_patches:wrap', expects=INSTALLED.fingerprint('{target}')), 'q')\n"
    write_modules({"fake_selfish.py": f"{source}\ndef top():\n    return 1\n\n{itself}"})

    with pytest.raises(QuirksError, match="fake_selfish:top cannot be patched while its module is being imported"):
        importlib.import_module("fake_selfish")


def test_a_wrapper_that_raises_while_its_module_is_imported_can_be_undone():
    installed = install(late("top", "fail"), "q")

    with pytest.raises(RuntimeError, match="cannot make it"):
        importlib.import_module("fake_engine.module")

    installed.undo()
    assert importlib.import_module("fake_engine.module").top() == "top"


@pytest.mark.parametrize("taken", ["before", "while"])
def test_names_that_others_took_from_the_module_follow_its_patches(taken):
    module = importlib.import_module("fake_engine.module")
    original = module.top
    if taken == "before":
        importlib.import_module("fake_user")
    first = install(late("top"), "a")
    user = importlib.import_module("fake_user")
    second = install(late("top"), "b")

    assert (user.top(), user.other_name()) == ("patched patched top",) * 2
    first.undo()
    assert user.top() == "patched top"
    second.undo()
    assert user.top is user.other_name is module.top is original


@pytest.mark.parametrize("imported", ["before", "after"])
def test_a_replacement_may_call_the_original_that_it_imported(imported):
    if imported == "before":
        importlib.import_module("fake_early_patches")
    user = importlib.import_module("fake_user")

    installed = install(Patch(TARGET, replacement="fake_early_patches:new", expects=INSTALLED.fingerprint(TARGET)), "q")
    assert (user.top(), importlib.import_module("fake_engine.module").top()) == ("new top", "new top")

    installed.undo()
    assert user.top() == "top"


def test_nothing_installed_is_edited(site):
    files = {file: file.read_bytes() for file in site.rglob("*.py")}

    install(late("top"), "q")
    importlib.import_module("fake_engine.module")

    assert {file: file.read_bytes() for file in site.rglob("*.py")} == files
