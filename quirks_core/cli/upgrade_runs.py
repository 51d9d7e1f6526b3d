"""``quirks upgrade --runs``: several runs of one repository in one report."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError, shown
from quirks_core.configuration.yaml_file import read_yaml
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.upgrade.finding import Comparison, Level, Verdict, verdict_of

#: What a file gives to the runs that name nothing of their own.
_SHARED = ("from", "to", "assume")


@dataclass(frozen=True, slots=True)
class Runs:
    """What changes for several runs, by their names; the gravest verdict is that of all."""

    found: Mapping[str, Comparison]

    @property
    def verdict(self) -> Verdict:
        """What the gravest finding means."""
        return verdict_of(finding for one in self.found.values() for finding in one.findings)

    @property
    def exit_code(self) -> int:
        """What the command returns."""
        return self.verdict.exit_code

    def to_json(self) -> dict[str, Any]:
        """Returns it for a program."""
        return {"verdict": self.verdict, "runs": {name: one.to_json() for name, one in self.found.items()}}

    def page(self) -> Page:
        """Returns the verdicts, and the page of each run."""
        sides = dict.fromkeys(one.sides for one in self.found.values())
        rows = [Finding(one.verdict, name, f"{one.sides}{_counted(one)}") for name, one in self.found.items()]
        return Page(
            head=f"{', '.join(sides)}: {len(rows)} runs",
            parts=[("", rows)],
            verdict=Finding(self.verdict, "", ""),
            details={f"{name}: {one.verdict}": one.page() for name, one in self.found.items()},
        )


def _counted(found: Comparison) -> str:
    counts = [(len(found.of(level)), level) for level in (Level.STOP, Level.UNKNOWN, Level.CHANGE)]
    return "".join(f", {count} {level}" for count, level in counts if count)


def compare_all(options: argparse.Namespace, compare: Callable[[argparse.Namespace], Comparison]) -> Runs:
    """Compares two releases for every run of a file.

    What a run has of its own counts before the command line, and that before what the file gives to all.

    Raises:
        UsageError: Something in the file, or in one of its runs, is wrong; the message names the run.
    """
    values = read_yaml(Path(options.runs))
    runs = values.pop("runs", None)
    if not isinstance(runs, dict) or not runs or values.keys() - {*_SHARED}:
        raise UsageError(f"{options.runs}: write runs by name under 'runs', and beside it nothing but {', '.join(_SHARED)}")
    shared = options.parser.parse_args(list(_words(values)))
    given = vars(options) | {"runs": None, "start": options.start or shared.start, "to": options.to or shared.to}
    given["assume"] = [*options.assume, *shared.assume]
    found = {}
    for name, run in runs.items():
        words = _words({"command": run} if isinstance(run, str) else run)
        try:
            found[name] = compare(options.parser.parse_args(list(words), argparse.Namespace(**given)))
        except UsageError as error:
            raise UsageError(f"{options.runs}, run {name!r}: {error}") from None
    return Runs(found)


def _words(run: Mapping[str, Any]) -> Iterator[str]:
    """The words of a command line: each key is the option of that name, and ``command`` is what follows them."""
    for key, value in run.items():
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                raise UsageError(f"{key}: {shown(text, 100)} is no text; write it in quotes")
            if key != "command":
                yield f"--{key}={text}"
    if command := run.get("command"):
        yield from ("--", *shlex.split(command))
