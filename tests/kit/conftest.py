"""What the tests of the kit share: pytest in pytest, fake distributions, and the command line in an environment of its own."""

from __future__ import annotations

import importlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Registry, sources
from quirks_core.cli import main
from quirks_core.testing import contract  # noqa: F401 - see `everything_is_imported`

_OURS = ("HF_", "MODEL_QUIRKS_", "NCCL_", "NRL_", "VLLM_")

#: What a good third-party quirk looks like; `%` stands for its id.
QUIRK = '''
"""Example models go wrong with CUDA graphs.

What happens: they do.

Evidence: none, this is a test.
"""

from quirks_core import Affected, Answer, Default, Example, Patch, Quirk, Refuse, Require, Severity, model_type, report

DECLARATION = dict(
    id="%",
    title="Example models go wrong",
    flag="enforce_eager",
    match=model_type("example"),
    adjustments=Default("engine.enforce_eager", True),
    severity=Severity.SLOW,
    references=report("https://example.org/1"),
    examples=(
        Example(answer=Answer.YES, config={"model_type": "example"}),
        Example(answer=Answer.NO, config={"model_type": "other"}),
        Example(answer=Answer.UNKNOWN),
    ),
    since="1.0",
)
'''


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


@pytest.fixture(scope="session", autouse=True)
def everything_is_imported() -> None:
    """A pytest in this process forgets what it imported: it must not forget half of our modules."""
    Registry.load()


@pytest.fixture(autouse=True)
def shell() -> Iterator[None]:
    """A wide terminal without colours, nothing of the developer's environment that could count, and nothing left behind."""
    before = dict(os.environ)
    for variable in [name for name in os.environ if name.startswith(_OURS)]:
        del os.environ[variable]
    os.environ.update({"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"})
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def quirks(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs one command in this process."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


def _forget_sources() -> None:
    for cached in (sources.module_source, sources._parsed):
        cached.cache_clear()
    importlib.invalidate_caches()


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


@pytest.fixture
def install(site: Path) -> Callable[..., None]:
    """Lays an installed distribution into the fake site folder: real metadata, real modules."""

    def make(name: str, entry_points: Mapping[str, str], **modules: str) -> None:
        folder = site / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
        lines = ["[model_quirks]", *(f"{key} = {value}" for key, value in entry_points.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        for module, text in modules.items():
            (site / f"{module}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        _forget_sources()

    return make


@pytest.fixture
def declared() -> Callable[..., str]:
    """Returns the source of a module with one quirk, with changes to its declaration as source."""

    def source(quirk_id: str, *, before: str = "", name: str = "QUIRK", **changes: str) -> str:
        changed = "".join(f"DECLARATION[{key!r}] = {value}\n" for key, value in changes.items())
        return QUIRK.replace("%", quirk_id) + f"{before}\n{changed}{name} = Quirk(**DECLARATION)\n"

    return source
