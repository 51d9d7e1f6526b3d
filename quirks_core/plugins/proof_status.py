"""How well a quirk is proven for given versions: by a run, by the source, by its declaration, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from quirks_core.declaration import evidence
from quirks_core.declaration.probes import ask
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer


class Standing(StrEnum):
    """What supports a quirk, the strongest first."""

    PROVEN = "proven by a paired run with exactly these versions"
    REFUTED = "refuted: a paired run with exactly these versions passed without it"
    ELSEWHERE = "proven by a paired run on another installation, model runner or mode"
    SOURCE = "not run, but the installed source is as declared"
    RANGE = "by its range of versions only"
    UNTESTED = "untested"


def standing(
    quirk: Quirk,
    platform: str | None,
    versions: Mapping[str, str],
    *,
    cpu: str = "",
    runner: str = "",
    graphs: bool = False,
    source: bool,
) -> tuple[Standing, str]:
    """Returns what supports a quirk on an installation, and where it was proven if it was.

    Args:
        quirk: The quirk.
        platform: The engine's platform.
        versions: Versions by package.
        cpu: Kind of CPU; empty if it is unknown.
        runner: The model runner; empty if it is unknown. A run on one runner proves nothing for the other.
        graphs: The engine runs CUDA graphs. An eager run proves nothing for these, as they replay addresses.
        source: The installed source is that of these versions, so that probes can be run.
    """
    runs = [item for item in evidence.proved(quirk) if item.by == evidence.RUN and item.decided is not None]
    for item in runs:
        here = item.platform == platform and (item.cpu == cpu or not quirk.depends_on_cpu) and item.graphs == graphs
        if here and item.runner in ("", runner) and all(versions.get(name) == text for name, text in item.versions.items()):
            return (Standing.PROVEN if item.decided else Standing.REFUTED), str(item.date)
    if proven := [item for item in runs if item.decided]:
        return Standing.ELSEWHERE, "; ".join(f"{item.place}: {_listed(item.versions)}" for item in proven)
    if source and any(ask(probe) is Answer.YES for probe in quirk.probes):
        return Standing.SOURCE, ""
    if quirk.affected:
        return Standing.RANGE, ", ".join(f"{ranged.package} {ranged}" for ranged in quirk.affected)
    return Standing.UNTESTED, ""


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in sorted(versions.items()))
