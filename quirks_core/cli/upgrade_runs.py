"""``quirks upgrade --runs``: several runs of one repository in one report."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.cli.upgrade_view import page_of_runs
from quirks_core.configuration.yaml_file import read_yaml
from quirks_core.reporting.page import Page
from quirks_core.upgrade.finding import Comparison, verdict_of


class Run(Record):
    """One run; each key is the option of ``quirks upgrade`` with its name.

    Attributes:
        command: The command line of a server, in one text.
        config: A configuration.
        model: The checkpoint.
        purpose: What the run is for.
        settings: ``slot=value`` texts.
        assume: ``name==value`` texts.
        patches: Instead of a run: a package with monkey-patches of vLLM.
        recipes: Instead of a run: a folder of recipes.
        start: The release that it uses; a version, or a path, such as that of the file that pins it.
        to: The release in question.
    """

    command: str = ""
    config: Path | None = None
    model: str | None = None
    purpose: str | None = None
    settings: tuple[str, ...] = Field((), alias="set")
    assume: tuple[str, ...] = ()
    patches: str | None = None
    recipes: str | None = None
    start: str | None = Field(None, alias="from")
    to: str | None = None


class RunsFile(Record):
    """The runs by name, and what those have that name nothing of their own.

    Attributes:
        runs: The runs; a text is the command line of a server.
        start: The release that they use.
        to: The release in question.
        assume: ``name==value`` texts for all of them.
    """

    runs: dict[str, Run] = Field(min_length=1)
    start: str | None = Field(None, alias="from")
    to: str | None = None
    assume: tuple[str, ...] = ()

    @field_validator("runs", mode="before")
    @classmethod
    def _commands(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: {"command": run} if isinstance(run, str) else run for name, run in value.items()}

    @classmethod
    def read(cls, file: Path) -> RunsFile:
        """Reads one.

        Raises:
            UsageError: It cannot be read, or holds something else.
        """
        try:
            return cls.model_validate(read_yaml(file))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


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
