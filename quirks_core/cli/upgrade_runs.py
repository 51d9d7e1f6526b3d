"""``quirks upgrade --runs``: several runs of one repository in one report."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.cli.upgrade_view import page_of_runs
from quirks_core.reporting.page import Page
from quirks_core.upgrade.finding import Comparison, verdict_of
from quirks_core.upgrade.runs_file import Run, RunsFile


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out.

    Attributes:
        page: It as a page.
        values: It for a program.
        code: The exit code.
        found: What changes for one run, a package of patches or a folder of recipes; None for what is more, or something else.
    """

    page: Page
    values: Mapping[str, Any]
    code: int
    found: Comparison | None = None

    @classmethod
    def of(cls, found: Comparison, page: Page) -> Examined:
        """Returns what was found out about one run."""
        values = found.model_dump(mode="json", exclude={"findings": {"__all__": {"change"}}})
        return cls(page, {"verdict": found.verdict, **values}, found.verdict.exit_code, found)


def examine_all(options: argparse.Namespace, examine: Callable[[argparse.Namespace], Examined]) -> Examined:
    """Examines every run of a file; the gravest verdict is that of all.

    Raises:
        UsageError: Something in the file, or in one of its runs, is wrong; the message names the run.
    """
    done: dict[str, Examined] = {}
    for name, run in _runs(options):
        try:
            done[name] = examine(run)
        except UsageError as error:
            raise UsageError(f"{options.runs}, run {name!r}: {error}") from None
    found = {name: one.found for name, one in done.items() if one.found is not None}
    verdict = verdict_of(finding for one in found.values() for finding in one.findings)
    page = replace(page_of_runs(found, verdict), details={f"{name}: {found[name].verdict}": done[name].page for name in done})
    values = {"verdict": verdict, "runs": {name: one.values for name, one in done.items()}}
    return Examined(page, values, verdict.exit_code)


def _runs(options: argparse.Namespace) -> Iterator[tuple[str, argparse.Namespace]]:
    """Every run as options; what it has of its own counts before the command line, and that before the file's defaults."""
    file = RunsFile.read(Path(options.runs))
    for name, run in file.runs.items():
        yield name, argparse.Namespace(**{**vars(options), "runs": None, **_options(run, file, options)})


def _options(run: Run, file: RunsFile, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "cmd": shlex.split(run.command),
        "config": run.config,
        "model": run.model,
        "purpose": run.purpose,
        "set": [*options.set, *run.settings],
        "assume": [*options.assume, *file.assume, *run.assume],
        "patches": run.patches,
        "recipes": run.recipes,
        "start": run.start or options.start or file.start,
        "to": run.to or options.to or file.to,
    }
