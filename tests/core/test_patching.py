"""A patch wraps or replaces one attribute, gives it back, and refuses a target that has drifted."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quirks_core import ABSENT, Patch, PatchDriftError, QuirksError, patching
from quirks_core.fingerprints import fingerprint
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

    @classmethod
    def named(cls):
        return cls.__name__

    def recurse(self, n):
        return n if n == 0 else self.recurse(n - 1)
"""
PATCHES = """
def wrap(original):
    return lambda *args: f"patched {original(*args)}"

def wrap_a(original):
    return lambda *args: f"a({original(*args)})"

def wrap_b(original):
    return lambda *args: f"b({original(*args)})"

def wrap_c(original):
    return lambda *args: f"c({original(*args)})"

def count(original):
    count.calls = 0
    def counted(self, n):
        count.calls += 1
        return original(self, n)
    return counted

def added(self):
    return "added"

def new():
    return "new"

def fail(original):
    raise RuntimeError("cannot make it")
"""
MODULE = "fake_engine.module"


@pytest.fixture(autouse=True)
def fake_modules(write_modules: Callable[[dict[str, str]], None]) -> Iterator[None]:
    """An engine to patch, and the patches' code; no patch outlives its test."""
    write_modules({"fake_engine/__init__.py": "", "fake_engine/module.py": ENGINE, "fake_patches.py": PATCHES})
    yield
    for site in list(patching._sites.values()):
        for quirk in list(site.patches):
            patching.InstalledPatch(site.patches[quirk], quirk, "").undo()


@pytest.fixture
def engine() -> Any:
    """The imported module."""
    return importlib.import_module(MODULE)


def wrapper(path: str, function: str, *expects: str) -> Patch:
    """A wrapper that was written against the source as it is, if no fingerprints are given."""
    target = f"{MODULE}:{path}"
    return Patch(target, wrapper=f"fake_patches:{function}", expects=expects or fingerprint(target))


def replacement(path: str, name: str, *expects: str) -> Patch:
    """A replacement that was written against the source as it is, if no fingerprints are given."""
    target = f"{MODULE}:{path}"
    return Patch(target, replacement=f"fake_patches:{name}", expects=expects or fingerprint(target))


def everything(engine: Any) -> tuple[dict[str, Any], ...]:
    """All that a patch could change in the module."""
    return tuple(dict(vars(owner)) for owner in (engine, engine.Engine, engine.Base))


def test_a_wrapper_gets_the_original(engine: Any) -> None:
    install(wrapper("Engine.step", "wrap"), "q")

    assert engine.Engine().step() == "patched step"


def test_a_function_of_a_module_can_be_wrapped(engine: Any) -> None:
    install(wrapper("top", "wrap"), "q")

    assert engine.top() == "patched top"


def test_a_static_method_stays_one(engine: Any) -> None:
    install(wrapper("Engine.fixed", "wrap"), "q")

    assert (engine.Engine().fixed(), engine.Engine.fixed()) == ("patched fixed", "patched fixed")
    assert isinstance(vars(engine.Engine)["fixed"], staticmethod)


def test_a_class_method_stays_one_and_knows_its_class(engine: Any) -> None:
    install(wrapper("Engine.named", "wrap"), "q")

    child = type("Child", (engine.Engine,), {})
    assert (engine.Engine.named(), child.named()) == ("patched Engine", "patched Child")
    assert isinstance(vars(engine.Engine)["named"], classmethod)


def test_a_replacement_is_put_in_place_as_it_is(engine: Any) -> None:
    install(replacement("top", "new"), "q")

    assert engine.top is importlib.import_module("fake_patches").new


def test_what_is_absent_is_added(engine: Any) -> None:
    install(replacement("Engine.stop", "added", ABSENT), "q")

    assert engine.Engine().stop() == "added"


def test_an_inherited_attribute_is_overridden_only_where_it_was_asked_for(engine: Any) -> None:
    install(replacement("Engine.inherited", "added", ABSENT), "q")

    assert (engine.Engine().inherited(), engine.Base().inherited()) == ("added", "inherited")


def test_a_function_that_calls_itself_by_name_goes_through_the_wrapper_every_time(engine: Any) -> None:
    install(wrapper("Engine.recurse", "count"), "q")

    assert engine.Engine().recurse(3) == 0
    assert importlib.import_module("fake_patches").count.calls == 4


@pytest.mark.parametrize(
    "patch",
    [
        ("wrapper", "Engine.step", "wrap"),
        ("wrapper", "Engine.fixed", "wrap"),
        ("wrapper", "Engine.named", "wrap"),
        ("wrapper", "top", "wrap"),
        ("replacement", "top", "new"),
        ("replacement", "Engine.inherited", "added"),
        ("replacement", "Engine.stop", "added"),
        ("replacement", "bottom", "new"),
    ],
    ids=lambda patch: f"{patch[0]} of {patch[1]}",
)
def test_undo_restores_exactly_what_was_there(engine: Any, patch: tuple[str, str, str]) -> None:
    kind, path, name = patch
    before = everything(engine)

    installed = install({"wrapper": wrapper, "replacement": replacement}[kind](path, name), "q")
    during = everything(engine)
    installed.undo()

    assert during != before
    assert everything(engine) == before
    assert patching._sites == {}


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
@pytest.mark.parametrize("undone", list(itertools.permutations("abc")))
def test_wrappers_go_around_each_other_in_order_of_their_ids_whatever_came_first(
    engine: Any, order: tuple[str, ...], undone: tuple[str, ...]
) -> None:
    before = everything(engine)
    installed = {name: install(wrapper("Engine.step", f"wrap_{name}"), name) for name in order}

    assert engine.Engine().step() == "c(b(a(step)))"

    left = list("abc")
    for name in undone:
        installed[name].undo()
        left.remove(name)
        expected = "step"
        for still in left:
            expected = f"{still}({expected})"
        assert engine.Engine().step() == expected
    assert everything(engine) == before


def test_the_same_patch_twice_counts_once(engine: Any) -> None:
    patch = wrapper("Engine.step", "wrap")
    first, second = install(patch, "q"), install(patch, "q")

    assert engine.Engine().step() == "patched step"
    assert first == second
    first.undo()
    assert engine.Engine().step() == "step"


def test_undoing_twice_changes_nothing(engine: Any) -> None:
    installed = install(wrapper("Engine.step", "wrap_a"), "a")
    other = install(wrapper("Engine.step", "wrap_b"), "b")

    installed.undo()
    installed.undo()

    assert engine.Engine().step() == "b(step)"
    other.undo()


@pytest.mark.parametrize("kinds", [("replacement", "wrapper"), ("wrapper", "replacement"), ("replacement", "replacement")])
def test_a_replacement_has_its_target_for_itself(engine: Any, kinds: tuple[str, str]) -> None:
    make = {"wrapper": lambda: wrapper("top", "wrap"), "replacement": lambda: replacement("top", "new")}
    install(make[kinds[0]](), "first")
    during = everything(engine)

    with pytest.raises(QuirksError, match=f"{MODULE}:top has an owner already, first, and second cannot be put on it"):
        install(make[kinds[1]](), "second")

    assert everything(engine) == during


def test_an_installed_patch_knows_the_source_that_it_was_put_on(engine: Any) -> None:  # noqa: ARG001 - imported first
    installed = install(wrapper("top", "wrap"), "q")

    assert installed.fingerprint == fingerprint(f"{MODULE}:top")


@pytest.mark.parametrize("path", ["Engine.step", "Engine.gone", "Gone.step"])
def test_a_drifted_target_is_refused_and_nothing_is_changed(engine: Any, path: str) -> None:
    before = everything(engine)

    with pytest.raises(PatchDriftError, match=rf"{MODULE}:{path} has changed since the patch .*expected 000000000000"):
        install(wrapper(path, "wrap", "0" * 64), "q")

    assert (everything(engine), patching._sites) == (before, {})


def test_a_target_that_appears_where_none_was_is_drift(engine: Any) -> None:  # noqa: ARG001 - imported first
    with pytest.raises(PatchDriftError, match=r"top has changed .*expected absent"):
        install(replacement("top", "new", ABSENT), "q")


def test_drift_shows_the_new_lines_and_counts_those_that_are_gone(write_modules: Callable[[dict[str, str]], None]) -> None:
    known = fingerprint(f"{MODULE}:Engine", lines=True)
    changed = ENGINE.replace('        return "step"\n', '        self.steps += 1\n        return "STEP"\n')
    write_modules({"fake_engine/module.py": changed.replace("    @staticmethod\n    def fixed():\n", "    def fixed(self):\n")})

    with pytest.raises(PatchDriftError) as error:
        install(wrapper("Engine", "wrap", known), "q")

    lines = str(error.value).splitlines()
    assert [line for line in lines if line.startswith("+")] == [
        "+         self.steps += 1",
        '+         return "STEP"',
        "+     def fixed(self):",
    ]
    assert [line for line in lines if line.startswith("-")] == [
        "- (lines 3 to 3 of the source it was written against)",
        "- (lines 5 to 6 of the source it was written against)",
    ]


@pytest.mark.parametrize("beside", [False, True])
def test_a_wrapper_that_raises_leaves_nothing_behind(engine: Any, beside: bool) -> None:
    if beside:
        install(wrapper("Engine.step", "wrap_a"), "a")
    value = engine.Engine().step()
    sites = {target: dict(site.patches) for target, site in patching._sites.items()}

    with pytest.raises(RuntimeError, match="cannot make it"):
        install(wrapper("Engine.step", "fail"), "q")

    assert engine.Engine().step() == value
    assert {target: dict(site.patches) for target, site in patching._sites.items()} == sites


@pytest.mark.parametrize("source", ["no_such_module:wrap", "fake_patches:no_such_function"])
def test_code_that_is_not_there_leaves_nothing_behind(engine: Any, source: str) -> None:
    before = everything(engine)
    target = f"{MODULE}:Engine.step"

    with pytest.raises((ImportError, AttributeError)):
        install(Patch(target, wrapper=source, expects=fingerprint(target)), "q")

    assert (everything(engine), patching._sites) == (before, {})


def test_a_patched_constant_reaches_only_who_could_have_it_from_there(write_modules: Callable[[dict[str, str]], None]) -> None:
    write_modules(
        {
            "fake_limits.py": "import fake_home\nlimit = None\ntable = {'a': 1}\nalias = fake_home.Home\n",
            "fake_home.py": "class Home: ...\n",
            "fake_user.py": "from fake_limits import table\nown = None\n",
            "fake_new.py": "seven = 7\nother = {'b': 2}\nclass New: ...\n",
        }
    )
    limits, home, user, new = (importlib.import_module(f"fake_{name}") for name in ("limits", "home", "user", "new"))
    before = (home.Home, limits.table)
    replacements = {"limit": "seven", "table": "other", "alias": "New"}

    installed = [
        install(Patch(f"fake_limits:{name}", replacement=f"fake_new:{to}", expects=fingerprint(f"fake_limits:{name}")), "a")
        for name, to in replacements.items()
    ]

    assert (limits.limit, limits.table, limits.alias) == (7, new.other, new.New)
    assert (user.own, user.table, home.Home) == (None, new.other, before[0])
    for patch in installed:
        patch.undo()
    assert (limits.limit, limits.table, limits.alias) == (None, before[1], before[0])
    assert (user.own, user.table, new.seven) == (None, before[1], 7)
