"""Patches on modules that are imported later, and on names that other modules took by ``from … import``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quirks_core import ABSENT, Patch, patching
from quirks_core.fingerprints import fingerprint
from quirks_core.patching import InstalledPatch, install

WriteModules = Callable[[dict[str, str]], None]

ENGINE = 'def top():\n    return "top"\n\n\nclass Engine:\n    def step(self):\n        return "step"\n'
PATCHES = """
from fake_engine.module import top as original_top

def wrap(original):
    return lambda *args: f"patched {original(*args)}"

def new():
    return f"new {original_top()}"

def fail(original):
    raise RuntimeError("cannot make it")
"""
LATE_PATCHES = PATCHES.replace("from fake_engine.module import top as original_top", "")
TARGET = "fake_engine.module:top"


@pytest.fixture(autouse=True)
def fake_modules(write_modules: WriteModules) -> Iterator[None]:
    """An engine and modules that use it; no patch and no finder outlives its test."""
    write_modules(
        {
            "fake_engine/__init__.py": "",
            "fake_engine/module.py": ENGINE,
            "fake_user.py": "from fake_engine.module import top\nfrom fake_engine.module import top as other_name\n",
            "fake_patches.py": PATCHES,
            "fake_late_patches.py": LATE_PATCHES,
        }
    )
    yield
    for site in list(patching._sites.values()):
        for quirk in list(site.patches):
            InstalledPatch(site.patches[quirk], quirk, "").undo()
    assert not is_watching()


def is_watching() -> bool:
    """Our finder stands in the way of imports."""
    return patching._finder in sys.meta_path


def late(path: str, name: str = "wrap", kind: str = "wrapper") -> Patch:
    """A patch whose code imports nothing of the engine."""
    target = f"fake_engine.module:{path}"
    return Patch(target, **{kind: f"fake_late_patches:{name}"}, expects=fingerprint(target))


def test_a_module_that_is_imported_later_is_patched_the_moment_it_is() -> None:
    installed = install(late("top"), "q")
    assert (installed.is_pending, "fake_engine.module" in sys.modules, is_watching()) == (True, False, True)

    module = importlib.import_module("fake_engine.module")

    assert (module.top(), installed.is_pending, is_watching()) == ("patched top", False, False)


def test_whoever_imports_the_name_later_gets_the_patched_one() -> None:
    install(late("top"), "q")

    user = importlib.import_module("fake_user")

    assert (user.top(), user.other_name()) == ("patched top", "patched top")


def test_every_patch_of_a_module_that_is_imported_later_comes_into_force_and_says_so() -> None:
    told: list[str] = []
    for quirk, path in (("a", "top"), ("b", "Engine.step"), ("c", "top")):
        install(late(path), quirk, when_in_force=lambda quirk=quirk: told.append(quirk))

    module = importlib.import_module("fake_engine.module")

    assert (module.top(), module.Engine().step()) == ("patched patched top", "patched step")
    assert told == ["a", "b", "c"]


def test_an_absent_attribute_is_added_to_a_module_that_is_imported_later() -> None:
    target = "fake_engine.module:bottom"
    installed = install(Patch(target, replacement="fake_late_patches:wrap", expects=ABSENT), "q")

    module = importlib.import_module("fake_engine.module")
    assert callable(module.bottom)

    installed.undo()
    assert not hasattr(module, "bottom")


def test_a_pending_patch_that_is_undone_never_comes_into_force() -> None:
    install(late("top"), "q").undo()

    assert (importlib.import_module("fake_engine.module").top(), is_watching()) == ("top", False)


def test_undoing_one_pending_patch_leaves_the_other_pending() -> None:
    first, second = install(late("top"), "a"), install(late("Engine.step"), "b")

    first.undo()

    module = importlib.import_module("fake_engine.module")
    assert (module.top(), module.Engine().step(), second.is_pending) == ("top", "patched step", False)


def test_other_modules_are_imported_as_ever_while_a_patch_waits() -> None:
    install(late("top"), "q")

    user = importlib.import_module("fake_late_patches")

    assert user.__spec__.loader.__class__.exec_module is type(user.__spec__.loader).exec_module
    assert "exec_module" not in vars(user.__spec__.loader)
    assert is_watching()


def test_a_wrapper_that_raises_while_its_module_is_imported_is_an_error_and_can_be_undone() -> None:
    installed = install(late("top", "fail"), "q")

    with pytest.raises(RuntimeError, match="cannot make it"):
        importlib.import_module("fake_engine.module")

    installed.undo()
    assert importlib.import_module("fake_engine.module").top() == "top"


def test_names_that_others_took_from_the_module_are_bound_anew_and_given_back() -> None:
    user: Any = importlib.import_module("fake_user")
    original = user.top

    installed = install(late("top"), "q")
    assert (user.top(), user.other_name()) == ("patched top", "patched top")

    installed.undo()
    assert user.top is user.other_name is original


def test_a_name_that_was_taken_while_the_patch_was_on_is_given_back_too() -> None:
    module = importlib.import_module("fake_engine.module")
    installed = install(late("top"), "q")
    user: Any = importlib.import_module("fake_user")

    installed.undo()

    assert user.top is module.top
    assert user.top() == "top"


def test_a_second_wrapper_reaches_the_names_that_others_took_as_well() -> None:
    user: Any = importlib.import_module("fake_user")
    first = install(late("top"), "a")
    install(late("top"), "b")
    assert user.top() == "patched patched top"

    first.undo()

    assert user.top() == "patched top"


@pytest.mark.parametrize("imported", ["before", "after"])
def test_a_replacement_may_call_the_original_that_it_imported(imported: str) -> None:
    if imported == "before":
        importlib.import_module("fake_patches")
    patch = Patch(TARGET, replacement="fake_patches:new", expects=fingerprint(TARGET))
    user: Any = importlib.import_module("fake_user")

    installed = install(patch, "q")
    assert (user.top(), importlib.import_module("fake_engine.module").top()) == ("new top", "new top")

    installed.undo()
    assert user.top() == "top"


def test_nothing_installed_is_edited(site: Any) -> None:
    files = {file: file.read_bytes() for file in site.rglob("*.py")}

    install(late("top"), "q")
    importlib.import_module("fake_engine.module")

    assert {file: file.read_bytes() for file in site.rglob("*.py")} == files
