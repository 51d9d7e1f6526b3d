"""A patch wraps, replaces or adds one attribute, now or once its module is imported, gives it back, and refuses drift."""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest

from quirks_core import Patch
from quirks_core.apply import imports, patching
from quirks_core.apply.patching import install, is_pending
from quirks_core.base.errors import PatchDriftError, QuirksError
from quirks_core.source.vllm_source import INSTALLED

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
"""
PATCHES = """
def wrap(original):
    return lambda *args: f"patched {original(*args)}"

def added(self):
    return "added"

def new():
    return "new"

def fail(original):
    raise RuntimeError("cannot make it")
"""
PATCHES += "".join(f"def wrap_{one}(original):\n    return lambda *args: f'{one}({{original(*args)}})'\n" for one in "abc")
EARLY = "from fake_engine.module import top as original_top\n\ndef new():\n    return f'new {original_top()}'\n"
MODULE = "fake_engine.module"


@pytest.fixture(autouse=True)
def fake_modules(write_modules):
    """An engine to patch, modules that use it, and the patches' code; no patch and no finder outlives its test."""
    write_modules(
        {
            "fake_engine/__init__.py": "",
            "fake_engine/module.py": ENGINE,
            "fake_patches.py": PATCHES,
            "fake_user.py": "from fake_engine.module import top\nfrom fake_engine.module import top as other_name\n",
            "fake_early_patches.py": EARLY,
        }
    )
    yield
    for site in list(patching._sites.values()):
        for quirk in list(site.patches):
            patching._remove(site.target, quirk)
    assert not is_watching()


@pytest.fixture
def engine():
    """The imported module."""
    return importlib.import_module(MODULE)


def patch_of(kind, path, name, *expects):
    """A patch that was written against the source as it is, if no fingerprints are given."""
    target = f"{MODULE}:{path}"
    given = {} if kind == "adds" else {"expects": expects or INSTALLED.fingerprint(target)}
    return Patch(target, **{kind: f"fake_patches:{name}"}, **given)


def wrapper(path, name, *expects):
    """A patch that wraps."""
    return patch_of("wrapper", path, name, *expects)


def is_watching():
    """A patch waits for the import of the module."""
    return MODULE in imports._finder.waiting


def everything(engine):
    """All that a patch could change in the module."""
    return tuple(dict(vars(owner)) for owner in (engine, engine.Engine, engine.Base))


@pytest.mark.parametrize(
    ("kind", "path", "name", "call", "answer"),
    [
        ("wrapper", "Engine.step", "wrap", lambda engine: engine.Engine().step(), "patched step"),
        ("wrapper", "top", "wrap", lambda engine: engine.top(), "patched top"),
        ("wrapper", "Engine.fixed", "wrap", lambda engine: engine.Engine().fixed(), "patched fixed"),
        ("wrapper", "Engine.fixed", "wrap", lambda engine: engine.Engine.fixed(), "patched fixed"),
        ("wrapper", "Engine.named", "wrap", lambda engine: engine.Engine.named(), "patched Engine"),
        ("wrapper", "Engine.named", "wrap", lambda engine: type("Child", (engine.Engine,), {}).named(), "patched Child"),
        ("replacement", "top", "new", lambda engine: engine.top(), "new"),
        ("adds", "Engine.stop", "added", lambda engine: engine.Engine().stop(), "added"),
        ("adds", "bottom", "new", lambda engine: engine.bottom(), "new"),
        ("adds", "Engine.inherited", "added", lambda engine: engine.Engine().inherited(), "added"),
        ("adds", "Engine.inherited", "added", lambda engine: engine.Base().inherited(), "inherited"),
    ],
)
def test_a_patch_is_in_force_until_it_is_undone(engine, kind, path, name, call, answer):
    before = everything(engine)

    remove = install(patch_of(kind, path, name), "q")
    during, got = everything(engine), call(engine)
    remove()

    assert got == answer
    assert during != before
    assert everything(engine) == before
    assert patching._sites == {}


def test_wrappers_go_around_each_other_in_order_of_their_ids(engine):
    before = everything(engine)
    for order, undone in itertools.product(itertools.permutations("abc"), repeat=2):
        installed = {name: install(wrapper("Engine.step", f"wrap_{name}"), name) for name in order}

        assert engine.Engine().step() == "c(b(a(step)))"

        left = list("abc")
        for name in undone:
            installed[name]()
            left.remove(name)
            assert engine.Engine().step() == "".join(f"{still}(" for still in reversed(left)) + "step" + ")" * len(left)
        assert everything(engine) == before


def test_the_same_patch_twice_counts_once(engine):
    patch = wrapper("Engine.step", "wrap_a")
    first, second = install(patch, "a"), install(patch, "a")
    install(wrapper("Engine.step", "wrap_b"), "b")
    assert engine.Engine().step() == "b(a(step))"

    first()
    second()

    assert engine.Engine().step() == "b(step)"


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (
            wrapper("Engine.step", "wrap", "0" * 12),
            rf"{MODULE}:Engine\.step is not the source .* the quirk expects 000000000000",
        ),
        (patch_of("adds", "top", "new"), "top exists by now"),
    ],
    ids=["changed", "exists by now"],
)
def test_a_drifted_target_is_refused(engine, patch, words):
    before = everything(engine)

    with pytest.raises(PatchDriftError, match=words):
        install(patch, "q")

    assert (everything(engine), patching._sites) == (before, {})


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("source", ["fake_patches:fail", "no_such_module:wrap", "fake_patches:no_such_function"])
def test_code_that_raises_or_is_not_there_leaves_nothing_behind(engine, source, beside):
    if beside:
        install(wrapper("Engine.step", "wrap_a"), "a")
    value = engine.Engine().step()
    sites = {target: dict(site.patches) for target, site in patching._sites.items()}
    target = f"{MODULE}:Engine.step"

    with pytest.raises((RuntimeError, ImportError, AttributeError)):
        install(Patch(target, wrapper=source, expects=INSTALLED.fingerprint(target)), "q")

    assert engine.Engine().step() == value
    assert {target: dict(site.patches) for target, site in patching._sites.items()} == sites


def test_a_patched_constant_reaches_only_who_has_it_from_there(write_modules):
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

    targets = {f"fake_limits:{name}": f"fake_new:{to}" for name, to in replacements.items()}
    installed = [
        install(Patch(target, replacement=new, expects=INSTALLED.fingerprint(target)), "a") for target, new in targets.items()
    ]

    assert (limits.limit, limits.table, limits.alias) == (7, new.other, new.New)
    assert (user.own, user.table, home.Home) == (None, new.other, before[0])
    for remove in installed:
        remove()
    assert (limits.limit, limits.table, limits.alias) == (None, before[1], before[0])
    assert (user.own, user.table, new.seven) == (None, before[1], 7)


# Modules that are imported later, and names that others took by ``from … import``


def test_a_later_module_is_patched_before_others_take_its_names():
    """By all that wait for it, but by none that was undone before."""
    for quirk, path in (("a", "top"), ("b", "Engine.step"), ("c", "top")):
        install(wrapper(path, "wrap"), quirk)
    for path in ("top", "Engine.fixed"):
        install(wrapper(path, "wrap_a"), "undone")()
    assert (is_pending(f"{MODULE}:top"), MODULE in sys.modules, is_watching()) == (True, False, True)

    user = importlib.import_module("fake_user")

    module = sys.modules[MODULE]
    assert (user.top(), user.other_name(), module.top()) == ("patched patched top",) * 3
    assert (module.Engine().step(), module.Engine.fixed()) == ("patched step", "fixed")
    assert (is_pending(f"{MODULE}:top"), is_watching()) == (False, False)


def test_a_module_cannot_be_patched_while_it_is_being_imported(write_modules):
    modules = {"Patch": "declaration.adjustments", "install": "apply.patching", "INSTALLED": "source.vllm_source"}
    source = "".join(f"from quirks_core.{module} import {name}\n" for name, module in modules.items())
    target = "fake_selfish:top"
    itself = f"install(Patch('{target}', wrapper='fake_patches:wrap', expects=INSTALLED.fingerprint('{target}')), 'q')\n"
    write_modules({"fake_selfish.py": f"{source}\ndef top():\n    return 1\n\n{itself}"})

    with pytest.raises(QuirksError, match="fake_selfish:top cannot be patched while its module is being imported"):
        importlib.import_module("fake_selfish")


def test_a_wrapper_that_raises_during_an_import_can_be_undone():
    remove = install(wrapper("top", "fail"), "q")

    with pytest.raises(RuntimeError, match="cannot make it"):
        importlib.import_module(MODULE)

    remove()
    assert importlib.import_module(MODULE).top() == "top"


@pytest.mark.parametrize("taken", ["before", "while"])
def test_names_that_others_took_follow_the_patches(taken):
    module = importlib.import_module(MODULE)
    original = module.top
    if taken == "before":
        importlib.import_module("fake_user")
    first = install(wrapper("top", "wrap"), "a")
    user = importlib.import_module("fake_user")
    second = install(wrapper("top", "wrap"), "b")

    assert (user.top(), user.other_name()) == ("patched patched top",) * 2
    first()
    assert user.top() == "patched top"
    second()
    assert user.top is user.other_name is module.top is original


@pytest.mark.parametrize("imported", ["before", "after"])
def test_a_replacement_may_call_the_original_that_it_imported(imported):
    if imported == "before":
        importlib.import_module("fake_early_patches")
    user = importlib.import_module("fake_user")

    remove = install(
        Patch(f"{MODULE}:top", replacement="fake_early_patches:new", expects=INSTALLED.fingerprint(f"{MODULE}:top")), "q"
    )
    assert (user.top(), importlib.import_module(MODULE).top()) == ("new top", "new top")

    remove()
    assert user.top() == "top"
