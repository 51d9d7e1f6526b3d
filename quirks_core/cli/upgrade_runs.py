"""``quirks upgrade --runs``: several runs of one repository in one report."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.base.text import one_line
from quirks_core.cli.command import print_document
from quirks_core.cli.upgrade_view import page_of_runs
from quirks_core.reporting.page import Page, markdown
from quirks_core.reporting.terminal import Screen
from quirks_core.upgrade.finding import Comparison, Verdict, verdict_of
from quirks_core.upgrade.runs_file import Run, RunsFile


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out about a run, a package of patches or a folder of recipes.

    Attributes:
        found: What changes.
        page: The same as a page.
    """

    found: Comparison
    page: Page

    @property
    def values(self) -> dict[str, Any]:
        """The same for a program, with the verdict."""
        values = self.found.model_dump(mode="json", exclude={"findings": {"__all__": {"change"}}})
        return {"verdict": self.found.verdict, **values}


def run_all(options: argparse.Namespace, examine: Callable[[argparse.Namespace], Examined]) -> int:
    """Examines every run of a file and prints what was found; returns the exit code of the gravest verdict.

    Args:
        options: Parsed arguments; ``runs`` names the file.
        examine: Examines one run, as options describe it.

    Raises:
        UsageError: Something in the file, or in one of its runs, is wrong; the message names the run.
    """
    done: dict[str, Examined] = {}
    for name, run in _runs(options):
        try:
            done[name] = examine(run)
        except UsageError as error:
            raise UsageError(f"{options.runs}, run {name!r}: {error}") from None
    verdict = verdict_of(finding for one in done.values() for finding in one.found.findings)
    _print(options, done, verdict)
    return verdict.exit_code


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


def _print(options: argparse.Namespace, done: dict[str, Examined], verdict: Verdict) -> None:
    page = page_of_runs({name: one.found for name, one in done.items()}, verdict)
    if options.json:
        print_document({"verdict": verdict, "runs": {name: one.values for name, one in done.items()}})
    elif options.markdown:
        print("\n".join(markdown(page)))
        for name, one in done.items():
            print(f"\n<details><summary>{_tag(name)}: {one.found.verdict}</summary>\n")
            print("\n".join(markdown(one.page)))
            print("\n</details>")
    else:
        screen = Screen()
        for one in done.values():
            screen.page(one.page)
            screen.print()
        screen.page(page)


def _tag(name: str) -> str:
    return one_line(name).replace("&", "&amp;").replace("<", "&lt;").replace("@", "@\u200b")
