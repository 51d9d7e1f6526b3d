"""What the downstream tests share: environments with third-party packages really installed, used from outside only.

The packages beside this file are built into wheels once. An environment is a virtual environment of its own that sees our
site-packages through a ``.pth`` file, so that nothing is downloaded, and into which pip installs some of the wheels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import installations
import pytest
from patience import HUNG_S
from programs import Outcome, inherited, run_python

HERE = Path(__file__).parent
PACKAGES = sorted(file.parent.name for file in HERE.glob("*/pyproject.toml"))
#: The packages have tests of their own, which run in their own environment.
collect_ignore_glob = [f"{name}/*" for name in PACKAGES]


@dataclass(frozen=True)
class Environment:
    """A Python environment, and how to run something in it.

    Attributes:
        python: Its interpreter.
        home: A folder for what the tests make.
        variables: What is added to every process's environment.
    """

    python: Path
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path, **variables: str) -> Outcome:
        """Runs the interpreter; nothing of the developer's environment counts."""
        environ = {**inherited(), **self.variables, **variables}
        process = run_python(*arguments, cwd=self.home, interpreter=self.python, environ=environ)
        return Outcome(process.returncode, process.stdout, process.stderr)

    def quirks(self, *arguments: str | Path, **variables: str) -> Outcome:
        """Runs one command of the command line; whatever it meets, it must not end in a traceback."""
        outcome = self.run("-m", "quirks_core.cli", *arguments, **variables)
        _, traceback, text = (outcome.out + outcome.err).rpartition("Traceback (most recent call last)")
        if traceback:
            pytest.fail(f"quirks {' '.join(map(str, arguments))} ends in a traceback:{text}", pytrace=False)
        return outcome

    def plan(self, model_type: str, *options: str | Path, **variables: str) -> Any:
        """Returns the plan of a run of such a model, as JSON; some quirk may refuse it."""
        outcome = self.quirks("plan", "--model", self.model(model_type), "--json", *options, **variables)
        assert outcome.code == (1 if outcome.json["refusals"] else 0), outcome
        return outcome.json

    def script(self, text: str, **variables: str) -> Any:
        """Runs a program that prints JSON, and returns what it printed."""
        outcome = self.run("-c", textwrap.dedent(text), **variables)
        assert outcome.code == 0, outcome.err
        return outcome.json

    def pip(self, *arguments: str | Path) -> None:
        """Runs pip for this environment; needs no network."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, *arguments], check=True, capture_output=True, timeout=HUNG_S)

    def model(self, model_type: str) -> Path:
        """Makes a model folder that holds a ``config.json`` and nothing else."""
        folder = self.home / "models" / model_type
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
        return folder

    def with_site(self, folder: Path) -> Environment:
        """The same environment with one more folder of installed packages."""
        return Environment(self.python, self.home, {**self.variables, "PYTHONPATH": str(folder)})


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """Finds the wheels of packages beside this file, which are built when the first one is asked for."""

    @cache
    def built() -> Path:
        sources, folder = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheels")
        for name in PACKAGES:  # a build leaves folders behind, which do not belong into the repository
            shutil.copytree(HERE / name, sources / name)
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
        line = [*build, "--wheel-dir", folder, *(sources / name for name in PACKAGES)]
        subprocess.run(line, check=True, capture_output=True, timeout=HUNG_S)
        return folder

    return lambda *names: [file for name in names for file in built().glob(f"{name.replace('-', '_')}-*.whl")]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: Callable[..., list[Path]]) -> Callable[..., Environment]:
    """Gives the environment in which, beside ours, exactly these third parties are installed; each is made once."""
    made: dict[tuple[str, ...], Environment] = {}

    def get(*distributions: str) -> Environment:
        if distributions not in made:
            folder = tmp_path_factory.mktemp("environment")
            ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
            python = installations.environment(folder, os.environ.get("TESTS_HIDDEN", ""), ours)
            (folder / "home").mkdir()
            made[distributions] = Environment(python, folder / "home")
            made[distributions].pip("install", "--no-index", "--no-deps", *wheels(*distributions))
        return made[distributions]

    return get


@pytest.fixture(scope="session")
def acme(installed: Callable[..., Environment]) -> Environment:
    """The environment of a user of Acme's quirks."""
    return installed("acme-engine", "acme-quirks", "acme-slots")
