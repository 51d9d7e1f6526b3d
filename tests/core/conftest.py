"""Small builders for the tests of quirks_core; every one gives something valid and takes overrides."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quirks_core import (
    Default,
    Discovered,
    Loaded,
    ModelFacts,
    ModelFlag,
    Plan,
    Quirk,
    Registry,
    RunContext,
    Severity,
    Switches,
    Wishes,
    bootstrap,
    discover,
    purpose,
    report,
    sources,
)
from quirks_core.resolve import resolve


@pytest.fixture(scope="session")
def make_context() -> Callable[..., RunContext]:
    """Builds the facts of a rollout with a tiny Qwen-3 on vLLM 0.32.0."""

    def make(*, config: Mapping[str, Any] | None = None, **overrides: Any) -> RunContext:
        facts: dict[str, Any] = {
            "model": ModelFacts(
                name="tiny-qwen3", path="/models/tiny-qwen3", config={"model_type": "qwen3"} if config is None else dict(config)
            ),
            "settings": {"engine.load_format": "dummy"},
            "packages": {"torch": "2.13.0", "vllm": "0.32.0"},
            "platform": "cpu",
        }
        return RunContext(**{**facts, **overrides})

    return make


@pytest.fixture(scope="session")
def make_quirk() -> Callable[..., Quirk]:
    """Builds a quirk that concerns every rollout."""

    def make(**overrides: Any) -> Quirk:
        declaration: dict[str, Any] = {
            "id": "example",
            "title": "Something goes wrong",
            "flag": ModelFlag.ENFORCE_EAGER,
            "match": purpose("rollout"),
            "adjustments": (Default("engine.enforce_eager", True),),
            "severity": Severity.SLOW,
            "references": (report("https://example.org/1"),),
        }
        return Quirk(**{**declaration, **overrides})

    return make


@pytest.fixture(scope="session")
def loaded() -> Callable[..., Loaded]:
    """Says which distribution a quirk comes from."""

    def make(quirk: Quirk, distribution: str = "example-quirks", version: str = "1.2") -> Loaded:
        return Loaded(quirk, distribution, version, quirk.id)

    return make


@pytest.fixture(scope="session")
def make_plan(make_context: Callable[..., RunContext], loaded: Callable[..., Loaded]) -> Callable[..., Plan]:
    """Resolves quirks for a context."""

    def make(
        *quirks: Quirk, context: RunContext | None = None, disable: tuple[str, ...] = (), force: tuple[str, ...] = ()
    ) -> Plan:
        switches = Switches.gather(command_line=Wishes(disable, force), environ={})
        return resolve(context or make_context(), [loaded(quirk) for quirk in quirks], switches)

    return make


def _forget_sources() -> None:
    for cached in (sources.module_source, sources._parsed, sources.engine_fields):
        cached.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path for fake packages; afterwards nothing of them is left in this process."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    _forget_sources()
    yield folder
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    _forget_sources()
    importlib.invalidate_caches()


@pytest.fixture
def write_modules(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Writes Python files, by path relative to the fake site folder.

    An earlier test may have imported the real package, and what is imported is found before what is on the path.
    """

    def write(modules: Mapping[str, str]) -> None:
        for name, text in modules.items():
            monkeypatch.delitem(sys.modules, name.partition("/")[0], raising=False)
            file = site / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")
        _forget_sources()
        importlib.invalidate_caches()

    return write


@pytest.fixture
def fake_distribution(site: Path, write_modules: Callable[[Mapping[str, str]], None]) -> Callable[..., None]:
    """Lays an installed distribution into the fake site folder: real metadata, real modules."""

    def make(
        name: str,
        version: str = "1.2",
        *,
        entry_points: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> None:
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        lines = ["[model_quirks]", *(f"{key} = {value}" for key, value in (entry_points or {}).items())]
        (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        write_modules(modules or {})

    return make


@pytest.fixture(scope="session")
def plugin_prelude() -> str:
    """The first lines of a fake plugin: the public names, and a function that makes a valid quirk."""
    return textwrap.dedent(
        """
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
    )


@pytest.fixture
def fake_plugins(fake_distribution: Callable[..., None], plugin_prelude: str) -> Callable[..., None]:
    """Installs one distribution with a plugin per keyword: its source, without the prelude."""

    def install(distribution: str = "fake-dist", /, **plugins: str) -> None:
        fake_distribution(
            distribution,
            entry_points={
                name.replace("_", "-"): f"{name}:QUIRK" if "QUIRK =" in text else name for name, text in plugins.items()
            },
            modules={f"{name}.py": plugin_prelude + text for name, text in plugins.items()},
        )

    return install


@pytest.fixture
def find_fakes() -> Callable[[], list[Discovered]]:
    """Finds the plugins of every fake distribution."""
    return lambda: [item for item in discover() if item.distribution.startswith("fake-")]


@pytest.fixture
def load_fakes(fake_plugins: Callable[..., None], find_fakes: Callable[[], list[Discovered]]) -> Callable[..., Registry]:
    """Installs one more distribution with a plugin per keyword, and loads all fakes."""

    def load(distribution: str = "fake-dist", /, **plugins: str) -> Registry:
        fake_plugins(distribution, **plugins)
        return Registry.load(find_fakes())

    return load


@pytest.fixture
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lets a plan's private folder be made where pytest cleans up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch, own_folders: None) -> Iterator[None]:  # noqa: ARG001 - for its effect
    """Gives the test an os.environ of its own, without orders, and takes patches off afterwards."""
    before = dict(os.environ)
    for name in (bootstrap.ORDERS_VARIABLE, bootstrap.FOLDER_VARIABLE, "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    bootstrap.undo()
    yield
    bootstrap.undo()
    os.environ.clear()
    os.environ.update(before)
