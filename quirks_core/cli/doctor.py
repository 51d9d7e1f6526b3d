"""``quirks doctor``: what is installed, what is broken, what has drifted, what is no longer needed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.markup import escape
from rich.table import Table

from quirks_core import sources
from quirks_core.adjustments import Patch
from quirks_core.apply import check_engine_environment
from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen
from quirks_core.discovery import Discovered, discover
from quirks_core.errors import UsageError
from quirks_core.evaluate import matches
from quirks_core.facts import Installation
from quirks_core.isolated import Seen, look
from quirks_core.lifecycle import Stage, lifecycle
from quirks_core.loaded import Loaded
from quirks_core.packages import installed_platform, installed_versions
from quirks_core.probes import Probe, ask
from quirks_core.propose import drift_of
from quirks_core.registry import Registry
from quirks_core.switches import Switches
from quirks_core.trace import Answer

#: CUDA builds of these make transformers fail at import beside a CPU build of torch.
_NEED_TORCH_CUDA = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    level: str
    subject: str
    message: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds whether plugins are loaded in processes of their own."""
    parser.add_argument(
        "--isolated", action="store_true", help="load each plugin in a process of its own with a time limit, and check its laws"
    )


def run_doctor(options: argparse.Namespace) -> int:
    """Checks the installation; 3 if a plugin is broken, 1 if something else is wrong."""
    switches = Switches.gather()
    found = discover()
    isolated = [(item, seen) for item, seen in zip(found, look(found), strict=True)] if options.isolated else []
    unfit = {id(item) for item, seen in isolated if seen.error}  # what hangs there would hang here
    registry = Registry.load([item for item in found if id(item) not in unfit], switches=switches)
    findings = [*_versions(), *_environment(), *_names(registry, switches), *_plugins(registry), *_isolated(isolated)]
    findings += _evidence(registry)
    broken = bool(registry.broken or unfit)
    wrong = any(finding.level == "error" for finding in findings)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, sort_keys=True))
    else:
        table = Table()
        for heading in ("", "subject", "finding"):
            table.add_column(heading, overflow="fold")
        colours = {"ok": "green", "note": "cyan", "error": "bold red"}
        for finding in findings:
            level = f"[{colours[finding.level]}]{finding.level}[/]"
            table.add_row(level, escape(finding.subject), escape(finding.message))
        Screen().print(table)
    return 3 if broken else 1 if wrong else 0


def _versions() -> list[Finding]:
    found = [Finding("ok", package, text) for package, text in installed_versions().items()]
    if not any(finding.subject == "vllm" for finding in found):
        found.append(Finding("note", "vllm", "not installed; plans need --assume vllm==VERSION"))
    found.append(Finding("ok", "platform", installed_platform() or "cannot be told"))
    return found


def _environment() -> list[Finding]:
    found = []
    try:
        check_engine_environment(os.environ)
    except UsageError as error:
        found.append(Finding("error", "environment", str(error)))
    if "+cpu" in installed_versions().get("torch", ""):
        for package in _NEED_TORCH_CUDA:
            try:
                installed = version(package)
            except PackageNotFoundError:
                continue
            if "+cpu" not in installed:
                message = f"{installed} is built for CUDA and breaks transformers beside a CPU torch: pip uninstall {package}"
                found.append(Finding("error", package, message))
    return found


def _names(registry: Registry, switches: Switches) -> list[Finding]:
    """Every run would stop at a name that does not exist."""
    try:
        return [Finding("note", "switches", text) for text in registry.check_names(switches)]
    except UsageError as error:
        return [Finding("error", "switches", str(error))]


def _plugins(registry: Registry) -> list[Finding]:
    found = [Finding("error", item.name, str(item)) for item in registry.broken]
    return [
        *found,
        *(Finding("note", item.plugin.name, str(item)) for item in registry.skipped),
        *(Finding("note", item.name, str(item)) for item in registry.slow),
        Finding("ok", "plugins", f"{len(registry.loaded)} quirks loaded, {len(registry.broken)} plugins broken"),
    ]


def _isolated(plugins: Iterable[tuple[Discovered, Seen]]) -> list[Finding]:
    """What loading each plugin in a process of its own has shown."""
    found = []
    for item, seen in plugins:
        if seen.error:
            found.append(Finding("error", item.name, f"plugin of {item.distribution} {item.version} is broken: {seen.error}"))
        for names, what in ((seen.heavy, "imports"), (seen.environment, "changes the environment variables")):
            if names:
                found.append(Finding("error", item.name, f"importing it {what} {', '.join(names)}"))
        found += [Finding(problem.level, quirk.id, problem.message) for quirk in seen.quirks for problem in quirk.problems]
    return found


def _evidence(registry: Registry) -> list[Finding]:
    found = []
    for item in registry.loaded:
        if (found_stage := lifecycle(item)).stage is Stage.EXPIRED:
            found.append(Finding("error", item.quirk.id, f"expired: {found_stage.evidence[-1]}"))
        found += [_probe(item, probe) for probe in item.quirk.probes]
        found += [_drift(item, patch) for patch in item.quirk.adjustments if isinstance(patch, Patch)]
    return found


def _probe(item: Loaded, probe: Probe) -> Finding:
    words = {
        Answer.YES: ("ok", "still needed here: the source holds the bug"),
        Answer.NO: ("ok", "no longer needed here: the source holds the fix"),
        Answer.UNKNOWN: ("note", f"cannot be told here: {probe}"),
    }
    level, message = words[ask(probe)]
    return Finding(level, item.quirk.id, message)


def _drift(item: Loaded, patch: Patch) -> Finding:
    if sources.module_source(patch.target.partition(":")[0]) is None:
        return Finding("note", item.quirk.id, f"{patch.target}: the module is not installed")
    if matches(item.quirk.match, Installation()).answer is Answer.NO:
        return Finding("note", item.quirk.id, f"{patch.target} is not checked: no run on this installation needs the patch")
    if (problem := drift_of(patch, item)) is None:
        return Finding("ok", item.quirk.id, f"{patch.target}: the source is the one that the patch was written against")
    return Finding("error", item.quirk.id, f"runs that need the patch are refused: {problem}")


COMMAND = Command("check plugins, versions and patches of this installation", run_doctor, add_arguments)
