"""What the tests of the kit share: pytest and ``quirks`` in processes of their own, and the source of a good quirk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import inherited, run_python

#: Writes down what pytest has to say of every test, a line for each phase.
RECORDER = """
import json

def pytest_runtest_logreport(report):
    found = [report.nodeid, report.when, report.outcome, hasattr(report, "wasxfail")]
    text = "\\n".join([report.longreprtext, *(part for section in report.sections for part in section)])
    with open("reports.jsonl", "a") as file:
        print(json.dumps([*found, text]), file=file)
"""


@dataclass(frozen=True)
class Tested:
    """What a run of pytest left behind.

    Attributes:
        code: The exit code.
        out: What it printed.
        outcomes: By test: ``passed``, ``failed``, ``error``, ``skipped``, ``xfailed`` or ``xpassed``.
        texts: By test, everything that was said of it.
    """

    code: int
    out: str
    outcomes: Mapping[str, str]
    texts: Mapping[str, str]


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in a process of its own, in which nothing of the developer's environment counts."""

    def run(*arguments: object, folder: Path | None = None, interpreter: str | Path = sys.executable, **variables: str) -> Any:
        hidden = os.environ.get("TESTS_HIDDEN") if interpreter == sys.executable else ""
        path = os.pathsep.join(filter(None, (variables.get("PYTHONPATH"), hidden)))
        environ = {**inherited(), **variables, "PYTHONPATH": path}
        return run_python(*arguments, cwd=folder, interpreter=interpreter, environ=environ)

    return run


@pytest.fixture(scope="session")
def tested(python: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tested]:
    """Runs pytest in a process and a folder of its own, on files given by name."""

    def run(files: Mapping[str, str], *arguments: str, **variables: str) -> Tested:
        folder = tmp_path_factory.mktemp("tested")
        plugins = "-p quirks_core.testing.plugin -p quirks_plugins.fixtures"
        ini = f"[pytest]\naddopts = {plugins} --strict-markers -rA\nasyncio_mode = auto\nxfail_strict = true\n"
        for name, text in {"pytest.ini": ini, "conftest.py": RECORDER, **files}.items():
            (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        line = ["-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = python(*line, folder=folder, PYTHONPATH=str(folder), **variables)
        return Tested(done.returncode, done.stdout + done.stderr, *_read(folder / "reports.jsonl"))

    return run


def _read(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    outcomes: dict[str, str] = {}
    texts: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        test, when, outcome, was_xfail, text = json.loads(line)
        texts[test] = texts.get(test, "") + text
        if when == "call" or outcome != "passed":
            outcomes[test] = {"failed": "failed" if when == "call" else "error"}.get(outcome, outcome)
            if was_xfail:
                outcomes[test] = "xfailed" if outcome == "skipped" else "xpassed"
    return outcomes, texts
