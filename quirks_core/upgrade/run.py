"""One run on a release: its facts, and its plan there.

Comparisons have it twice: ``before`` on the release that the run uses, ``after`` on the release in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.context import RunContext
from quirks_core.plan.records import Plan
from quirks_core.plugins.planning import PlanOptions
from quirks_core.plugins.registry import Registry
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.release import Release

#: What a release without a version is taken for: a source build, which no range of versions can place, but probes can.
_SOURCE_BUILD = "0.1.dev0"


@dataclass(frozen=True, slots=True)
class OnRelease:
    """A run on one release.

    Attributes:
        release: The release.
        plan: The plan of the run there; its facts are part of it.
    """

    release: Release
    plan: Plan

    @property
    def context(self) -> RunContext:
        """The facts."""
        return self.plan.context


def on_release(release: Release, config: GenerationConfig, options: PlanOptions, registry: Registry) -> OnRelease:
    """Makes the plan of a run on a release, with probes and patches held against the source of that release.

    Packages that the release pins to another version than the installed one count as that version; those that are merely out of
    its range are unknown.

    Raises:
        UsageError: Something in the configuration or the options is wrong.
    """
    if any(text.partition("==")[0].strip() == PACKAGE for text in options.assume):
        raise UsageError("--assume vllm==… and --from and --to contradict each other: name the releases with --from and --to")
    version = release.version or _SOURCE_BUILD
    # Assumed while the facts are gathered, as an argument that this release lacks is a finding, not an error.
    assume = [f"{PACKAGE}=={version}", *options.assume]
    context = RunContext.gather(config, fact_names=registry.fact_names, assume=assume, source=release.source)
    packages, pinned = packages_on(release, context.packages, but_not=context.assumed)
    assumed = (context.assumed | pinned) - {PACKAGE}
    context = context.model_copy(update={"packages": {**packages, PACKAGE: version}, "assumed": assumed})
    return OnRelease(release, registry.resolve(context, options.switches))


def packages_on(
    release: Release, installed: Mapping[str, str], *, but_not: Iterable[str] = ()
) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the versions of packages beside a release, and the names of those that are not the installed ones.

    Args:
        release: The release; nothing changes if its requirements are unknown.
        installed: Versions by package.
        but_not: Packages that stay as they are.
    """
    if release.source == INSTALLED:
        return dict(installed), frozenset()
    found, pinned = dict(installed), set()
    for need in requirements(release):
        name = canonicalize_name(need.name)
        if name not in found or name in but_not or need.specifier.contains(found[name], prereleases=True):
            continue
        del found[name]
        exact = [item.version for item in need.specifier if item.operator == "==" and not item.version.endswith("*")]
        if exact:
            found[name] = exact[0]
            pinned.add(name)
    return found, frozenset(pinned)


def requirements(release: Release) -> list[Requirement]:
    """Returns the requirements of a release that hold in this environment without extras."""
    needs = read_requirements(release.requires or ())
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


def read_requirements(texts: Iterable[str]) -> Iterator[Requirement]:
    """Yields the requirements of a distribution; what cannot be read as one is left out."""
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:
            continue
