"""``quirks new``: the package that it makes is complete, and its tests pass as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from installations import copy_checkout, environment

Quirks = Callable[..., Any]

FILES = [
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "src/acme_quirks/__init__.py",
    "src/acme_quirks/example.py",
    "tests/test_example.py",
]


@pytest.fixture
def own_python(tmp_path: Path, python: Callable[..., Any]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in an environment of its own, which sees ours through a .pth file and needs no network."""
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    own = environment(tmp_path / "venv", os.environ.get("TESTS_HIDDEN", ""), ours)
    return lambda *arguments, **more: python(*arguments, interpreter=own, **more)


def test_a_new_package_is_sound_until_its_quirk_is_changed(
    quirks: Quirks, own_python: Callable[..., Any], tmp_path: Path
) -> None:
    """Whatever its quirk is called."""
    one = tmp_path / "acme-quirks"
    made = quirks("new", "acme-quirks", "--folder", one, "--id", "acme-quirks/class.2b")
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    installed = own_python(*pip, one, folder=tmp_path)
    assert (made.code, installed.returncode) == (0, 0), installed.stderr

    tested = own_python("-m", "pytest", "-q", folder=one)
    validated = own_python("-m", "quirks_core.cli", "validate", "--json", folder=tmp_path)

    assert "17 passed" in tested.stdout, tested
    found = json.loads(validated.stdout)
    assert (validated.returncode, found["findings"]) == (0, [])
    assert [row["quirks"] for row in found["distributions"]] == [["acme-quirks/class.2b"]]

    (source,) = (file for file in (one / "src" / "acme_quirks").glob("*.py") if file.name != "__init__.py")
    text = source.read_text(encoding="utf-8").replace('"engine.enforce_eager", True', '"engine.dtype", "auto"')
    source.write_text(text, encoding="utf-8")

    changed = own_python("-m", "pytest", "-q", folder=one, PYTHONPATH=str(one / "src"))

    assert changed.returncode == 1
    assert "test_example_models_run_eagerly" in changed.stdout


def test_the_next_steps_are_shown_below_the_files(quirks: Quirks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    outcome = quirks("new", "Acme_Quirks")
    record = quirks("new", "acme-quirks", "--folder", "deep/er", "--json").json

    assert outcome.code == 0
    assert sorted(str(file.relative_to("acme-quirks")) for file in Path("acme-quirks").rglob("*") if file.is_file()) == FILES
    assert [line.strip() for line in outcome.out.splitlines()[: len(FILES)]] == [f"acme-quirks/{name}" for name in FILES]
    for step in ("cd acme-quirks", "pip install -e .", "pytest", "quirks validate acme-quirks"):
        assert f"\n  {step}\n" in outcome.out
    assert record == {"folder": "deep/er", "id": "acme-quirks/example", "files": FILES}


def test_the_files_are_well_formatted_without_a_placeholder_left(quirks: Quirks, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    quirks("new", "acme-quirks", "--folder", folder)
    ruff, length = [sys.executable, "-m", "ruff"], ["--no-cache", "--isolated", "--line-length", "128"]

    form = subprocess.run([*ruff, "format", *length, "--check", "."], cwd=folder, check=False)
    lint = subprocess.run([*ruff, "check", *length, "--select", "E,F,I,UP", "."], cwd=folder, check=False)

    assert (form.returncode, lint.returncode) == (0, 0)
    texts = [file.read_text(encoding="utf-8") for file in folder.rglob("*") if file.is_file()]
    assert not [text for text in texts if "$package" in text or "$id" in text or "${" in text or "$$" in text]


#: What a checkout makes of a built-in quirk: its plan, what validation finds, and its page.
SEEN = """
import json, sys
sys.path.insert(0, "docs/_ext")
import pages
from quirks_core import yes
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import problems
registry = Registry.load(strict=True)
plan = registry.resolve(yes("example", vllm="0.32.0").context())
page = pages.quirk_pages()["kit-example.md"]
print(json.dumps([plan.changes, [one.message for one in problems(registry.find("kit-example"))], page]))
"""


def test_a_built_in_quirk_is_one_file(python: Callable[..., Any], tmp_path: Path) -> None:
    """A copy of the checkout lists, plans, validates and documents it, and nothing else there was edited."""
    copy_checkout(tmp_path, "quirks_core", "quirks_plugins", "worker", "docs", "pyproject.toml")
    in_copy = partial(python, folder=tmp_path, PYTHONPATH=str(tmp_path))
    new = ["-m", "quirks_core.cli", "new", "--json", "--builtin", "kit-example"]

    made, again, seen = in_copy(*new, "--flag", "sleep"), in_copy(*new), in_copy("-c", SEEN)

    assert json.loads(made.stdout)["files"] == ["quirks_plugins/sleep/kit_example.py"], made.stderr
    assert (again.returncode, "is taken by model-quirks" in again.stdout) == (2, True)
    changes, problems, page = json.loads(seen.stdout)
    assert (changes["engine.enforce_eager"], problems, "# kit-example" in page) == (True, [], True)
    rows = {row["id"]: row["flag"] for row in json.loads(in_copy("-m", "quirks_core.cli", "list", "--json").stdout)}
    assert rows["kit-example"] == "sleep"


def test_a_folder_in_use_is_left_alone(quirks: Quirks, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()

    codes = [quirks("new", "acme-quirks", "--folder", tmp_path / name).code for name in ("used", "file", "file/below", "empty")]

    assert codes == [2, 2, 2, 0]
    assert [file.name for file in (tmp_path / "used").iterdir()] == ["mine.txt"]
    assert (tmp_path / "file").read_text() == "mine"
