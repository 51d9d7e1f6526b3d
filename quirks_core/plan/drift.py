"""Compares the source of a patch's target with the sources that the patch was written against."""

from __future__ import annotations

from typing import NamedTuple

from quirks_core.declaration import data_file
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.quirk import Quirk
from quirks_core.plan.records import with_lines
from quirks_core.source.vllm_source import VllmSource


class Drift(NamedTuple):
    """What is wrong with the source of a patch's target, and the versions for which the patch was written."""

    reason: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return with_lines(self.reason, self.lines)


def drift_of(patch: Patch, quirk: Quirk | None, source: VllmSource) -> Drift | None:
    """Returns what is wrong with the source of a patch's target; None if the patch was written against it.

    A quirk's data file has the versions for which the patch was written; without one they are not shown.
    """
    here = source.fingerprint(patch.target)
    if patch.adds:
        if here is not None:
            return Drift(f"{patch.target} exists by now, and the patch was written to add it")
        return None if source.has_owner(patch.target) else Drift(source.missing(patch.target))
    if here in patch.expects:
        return None
    if here is None:
        return Drift(source.missing(patch.target))
    expected = ", ".join(patch.expects)
    reason = (
        f"{patch.target} is not the source this patch was written against: fingerprint {here}, and the quirk expects {expected}"
    )
    if quirk is None:
        return Drift(reason)
    versions = ", ".join(data_file.read_for(quirk).versions(patch.target, patch.expects))
    return Drift(reason, (f"it was written against the source of {versions}",) if versions else ())
