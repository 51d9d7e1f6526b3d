"""A quirk with the plugin that declares it."""

from __future__ import annotations

from dataclasses import dataclass

from quirks_core.declaration.flags import BUILT_IN
from quirks_core.declaration.quirk import Quirk
from quirks_core.plan.records import Contributor


@dataclass(frozen=True, slots=True)
class Loaded:
    """A quirk and the plugin that declares it."""

    quirk: Quirk
    distribution: str
    version: str
    entry_point: str

    def __str__(self) -> str:
        return f"{self.quirk.id} ({self.distribution} {self.version}, {self.quirk.location})"

    @property
    def is_built_in(self) -> bool:
        """The quirk ships with model-quirks."""
        return self.distribution == BUILT_IN

    def contributor(self, reason: str = "") -> Contributor:
        """Names the quirk as the source of an adjustment."""
        return Contributor(
            id=self.quirk.id,
            distribution=self.distribution,
            version=self.version,
            location=str(self.quirk.location),
            reason=reason or self.quirk.title,
            reference=self.quirk.references[0].url,
        )
