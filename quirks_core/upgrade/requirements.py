"""What a release requires, held against what is installed, in the words that pip uses."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageMetadata, distributions

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from quirks_core.base.text import listed
from quirks_core.facts.packages import PACKAGES
from quirks_core.facts.trainers import Trainer
from quirks_core.reporting.finding import Finding
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.finding import Level, Section
from quirks_core.upgrade.release import OnRelease, Release, read_requirements


def requirement_changes(after: OnRelease) -> Iterator[Finding]:
    """Yields the requirements of the release in question that what is installed does not meet, and what they break."""
    release = after.release
    yield from _python(release)
    if release.requires is None:
        message = "its source names no requirements, so they are not held against what is installed"
        yield Section.REQUIREMENTS.finding(Level.NOTE, release.name, message)
        return
    installed = _installed()
    needs = release.needs
    if after.context.platform == "cpu" and release.distribution == PACKAGE and release.source != INSTALLED:
        message = f"the requirements of a CPU build of {release.label} are unknown; these are those of {release.name}, for CUDA"
        yield Section.REQUIREMENTS.finding(Level.NOTE, "vllm-cpu", message)
    missing = [_short(need) for need in needs if canonicalize_name(need.name) not in installed]
    here = ((need, installed[name]["Version"]) for need in needs if (name := canonicalize_name(need.name)) in installed)
    others = [
        f"{_short(need)} ({version} here)" for need, version in here if not need.specifier.contains(version, prereleases=True)
    ]
    parts = [f"other versions than those here of {', '.join(others)}"] if others else []
    parts += [f"{len(missing)} packages that are not here ({listed(missing)})"] if missing else []
    if parts:
        yield Section.REQUIREMENTS.finding(Level.NOTE, "packages", f"{release.name} requires {'; and '.join(parts)}")


def trainer_windows(after: OnRelease, trainer: Trainer | None) -> Iterator[Finding]:
    """Yields the installed packages, and the trainer, that do not count the release among those that they support."""
    version = after.release.version
    if version is None:
        message = "the release has no version, so that it cannot be held against the versions that other packages support"
        yield Section.TRAINERS.finding(Level.NOTE, after.release.name, message)
        return
    named = set()
    for name, item in sorted(_installed().items()):
        for need in read_requirements(item.get_all("Requires-Dist") or ()):
            if canonicalize_name(need.name) not in PACKAGES[PACKAGE] or need.specifier.contains(version, prereleases=True):
                continue
            named.add(name)
            is_optional = need.marker is not None and "extra" in str(need.marker)
            if is_optional and canonicalize_name(need.name) != after.release.distribution:
                continue  # an extra for the other build
            words = f"{item['Name']} {item['Version']} requires {need}, and {version} is asked for"
            level = Level.NOTE if is_optional else Level.STOP
            yield Section.TRAINERS.finding(level, name, words)
    if trainer is None or trainer.name in named or SpecifierSet(trainer.window).contains(version, prereleases=True):
        return
    message = f"{trainer.source} supports vLLM {trainer.window}, and {version} is asked for"
    yield Section.TRAINERS.finding(Level.NOTE, trainer.name, message)


def _python(release: Release) -> Iterator[Finding]:
    here = platform.python_version()
    if release.requires_python is not None and not SpecifierSet(release.requires_python).contains(here, prereleases=True):
        words = f"package {release.name} requires a different Python: {here} not in '{release.requires_python}'"
        yield Section.REQUIREMENTS.finding(Level.STOP, "Python", words)


def _installed() -> Mapping[str, PackageMetadata]:
    """The metadata of what is installed, by name."""
    found: dict[str, PackageMetadata] = {}
    for item in distributions():
        with suppress(Exception):  # unreadable metadata; 'quirks doctor' names them
            found.setdefault(canonicalize_name(item.metadata["Name"]), item.metadata)
    return found


def _short(need: Requirement) -> str:
    """A requirement without its marker, which holds here."""
    return f"{need.name}{need.specifier}"
