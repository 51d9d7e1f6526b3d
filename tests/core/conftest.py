"""Small builders for the tests of quirks_core; every one gives something valid and takes overrides."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap

import pytest
from installations import lay

from quirks_core import Default, ModelFlag, Quirk, RunContext, Severity, purpose, report
from quirks_core.apply import handed_down, process
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.model import ModelFacts
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.resolve import resolve
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry


@pytest.fixture(scope="session")
def parse():
    """Checks a configuration, given as sections."""
    return lambda **sections: GenerationConfig.parse({"model": "some/model", **sections})


@pytest.fixture(scope="session")
def make_context():
    """Builds the facts of a rollout with a tiny Qwen-3 on vLLM 0.32.0, which is assumed and need not be installed."""

    def make(*, config=None, **overrides):
        config = {"model_type": "qwen3"} if config is None else config
        facts = {
            "model": ModelFacts(name="tiny-qwen3", path="/models/tiny-qwen3", config=config),
            "settings": {"engine.load_format": "dummy"},
            "packages": {"torch": "2.13.0", "vllm": "0.32.0"},
            "assumed": frozenset({"vllm"}),
            "platform": "cpu",
        }
        return RunContext(**{**facts, **overrides})

    return make


@pytest.fixture(scope="session")
def make_quirk():
    """Builds a quirk that concerns every rollout."""

    def make(*, location=None, **overrides):
        declaration = {
            "id": "example",
            "title": "Something goes wrong",
            "flag": ModelFlag.ENFORCE_EAGER,
            "match": purpose("rollout"),
            "adjustments": Default("engine.enforce_eager", True),
            "severity": Severity.SLOW,
            "references": report("https://example.org/1"),
        }
        quirk = Quirk(**{**declaration, **overrides})
        if location is not None:
            object.__setattr__(quirk, "location", location)
        return quirk

    return make


@pytest.fixture(scope="session")
def loaded():
    """Says which distribution a quirk comes from."""
    return lambda quirk, distribution="example-quirks", version="1.2": Loaded(quirk, distribution, version, quirk.id)


@pytest.fixture(scope="session")
def make_plan(make_context, loaded):
    """Resolves quirks for a context."""

    def make(*quirks, context=None, disable=(), force=()):
        switches = Switches.gather(command_line=SwitchNames(disable, force), environ={})
        return resolve(context or make_context(), map(loaded, quirks), switches)

    return make


@pytest.fixture(scope="session")
def plan_of(make_context, make_quirk, make_plan):
    """Resolves one quirk per adjustment (or list of some): q0, q1, …; beside what the user typed or the configuration has."""

    def make(*wanted, typed=None, untyped=None, **facts):
        values = {**(untyped or {}), **(typed or {})}
        variables = {name.removeprefix("env."): value for name, value in values.items() if name.startswith("env.")}
        settings = {name: value for name, value in values.items() if not name.startswith("env.")}
        context = make_context(settings=settings, typed=frozenset(typed or {}), environment=variables, **facts)
        return make_plan(*(make_quirk(id=f"q{n}", adjustments=item) for n, item in enumerate(wanted)), context=context)

    return make


@pytest.fixture
def write_modules(site, forget_sources, monkeypatch):
    """Writes Python files, by path relative to the fake site folder.

    An earlier test may have imported the real package, and what is imported is found before what is on the path.
    """

    def write(modules):
        for name, text in modules.items():
            monkeypatch.delitem(sys.modules, name.partition("/")[0], raising=False)
            file = site / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")
        forget_sources()

    return write


@pytest.fixture
def fake_distribution(site, write_modules):
    """Lays an installed distribution into the fake site folder: real metadata, real modules."""

    def make(name, version="1.2", *, entry_points=None, modules=None):
        lay(site, name, version, entry_points)
        write_modules(modules or {})

    return make


#: The first lines of a fake plugin: the public names, and a function that makes a valid quirk.
_PRELUDE = """
from quirks_core import *

def make(name, **overrides):
    declaration = {
        "id": name,
        "title": "Something goes wrong",
        "flag": "enforce_eager",
        "match": purpose("rollout"),
        "adjustments": Default("engine.enforce_eager", True),
        "severity": Severity.SLOW,
        "references": report("https://example.org/1"),
    }
    return Quirk(**{**declaration, **overrides})

"""


@pytest.fixture
def fake_plugins(fake_distribution):
    """Installs one distribution with a plugin per keyword: its source, without the prelude."""

    def install(distribution="fake-dist", /, **plugins):
        points = {name.replace("_", "-"): f"{name}:QUIRK" if "QUIRK =" in text else name for name, text in plugins.items()}
        modules = {f"{name}.py": _PRELUDE + text for name, text in plugins.items()}
        fake_distribution(distribution, entry_points=points, modules=modules)

    return install


@pytest.fixture
def find_fakes():
    """Finds the plugins of every fake distribution."""
    return lambda: [item for item in discover() if item.distribution.startswith("fake-")]


@pytest.fixture
def load_fakes(fake_plugins, find_fakes):
    """Installs one more distribution with a plugin per keyword, and loads all fakes."""

    def load(distribution="fake-dist", /, **plugins):
        fake_plugins(distribution, **plugins)
        return Registry.load(find_fakes())

    return load


@pytest.fixture
def own_environment(monkeypatch, tmp_path):
    """Gives the test an os.environ and a temporary folder of its own, without a plan, and takes patches off afterwards."""
    before = dict(os.environ)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (handed_down.PLAN_VARIABLE, handed_down.FOLDER_VARIABLE, "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    process.undo()
    yield
    process.undo()
    os.environ.clear()
    os.environ.update(before)
