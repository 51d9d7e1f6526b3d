"""A patch replaces one attribute, gives it back, and refuses a target that has drifted."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from quirks_core import ABSENT, Patch, PatchDriftError, sources
from quirks_core.patching import install

ENGINE = """
def top():
    return "top"


class Base:
    def inherited(self):
        return "inherited"


class Engine(Base):
    def step(self):
        return "step"

    @staticmethod
    def fixed():
        return "fixed"
"""
PATCHES = """
def wrap(original):
    return lambda *args: f"patched {original(*args)}"

def wrap_static(original):
    return staticmethod(lambda: f"patched {original()}")

def add(original):
    return lambda self: f"added to {original}"

def fail(original):
    raise RuntimeError("cannot make it")
"""


@pytest.fixture(autouse=True)
def fake_modules(write_modules: Callable[[dict[str, str]], None]) -> None:
    """An engine to patch, and the patches' code."""
    write_modules({"fake_engine/__init__.py": "", "fake_engine/module.py": ENGINE, "fake_patches.py": PATCHES})


@pytest.fixture
def engine() -> Any:
    """The imported module."""
    return importlib.import_module("fake_engine.module")


def patch(path: str, function: str, *fingerprints: str) -> Patch:
    """A patch written against the source as it is, if no fingerprints are given."""
    target = f"fake_engine.module:{path}"
    return Patch(target, f"fake_patches:{function}", fingerprints or (sources.fingerprint(target),))


def test_a_patch_wraps_the_original(engine: Any) -> None:
    install(patch("Engine.step", "wrap"))

    assert engine.Engine().step() == "patched step"


def test_a_function_of_a_module_can_be_patched(engine: Any) -> None:
    install(patch("top", "wrap"))

    assert engine.top() == "patched top"


def test_a_static_method_stays_one(engine: Any) -> None:
    install(patch("Engine.fixed", "wrap_static"))

    assert engine.Engine().fixed() == "patched fixed"


def test_what_is_absent_is_added_and_the_patch_gets_none(engine: Any) -> None:
    install(patch("Engine.stop", "add", ABSENT))

    assert engine.Engine().stop() == "added to None"


def test_an_inherited_attribute_is_overridden_only_where_it_was_asked_for(engine: Any) -> None:
    install(patch("Engine.inherited", "add", ABSENT))

    assert (engine.Engine().inherited(), engine.Base().inherited()) == ("added to None", "inherited")


@pytest.mark.parametrize(
    ("path", "function"),
    [("Engine.step", "wrap"), ("Engine.fixed", "wrap_static"), ("top", "wrap"), ("Engine.inherited", "add")],
)
def test_undo_restores_exactly_what_was_there(engine: Any, path: str, function: str) -> None:
    before = (dict(vars(engine)), dict(vars(engine.Engine)))

    install(patch(path, function)).undo()

    assert (dict(vars(engine)), dict(vars(engine.Engine))) == before


def test_an_installed_patch_knows_the_source_it_replaced(engine: Any) -> None:  # noqa: ARG001 - imported first
    assert install(patch("top", "wrap")).fingerprint == sources.fingerprint("fake_engine.module:top")


@pytest.mark.parametrize("path", ["Engine.step", "Engine.gone"])
def test_a_drifted_target_is_refused_and_nothing_is_changed(engine: Any, path: str) -> None:
    before = dict(vars(engine.Engine))

    with pytest.raises(PatchDriftError, match=rf"fake_engine\.module:{path} has fingerprint .* was written against 0000"):
        install(patch(path, "wrap", "0000"))

    assert dict(vars(engine.Engine)) == before


def test_a_patch_whose_code_fails_changes_nothing(engine: Any) -> None:
    before = dict(vars(engine.Engine))

    with pytest.raises(RuntimeError, match="cannot make it"):
        install(patch("Engine.step", "fail"))

    assert dict(vars(engine.Engine)) == before
