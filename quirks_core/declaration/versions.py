"""Version ranges: half-open, compared as `packaging.version.Version`; the answer is unknown if a version cannot be compared.

PEP 440 specifiers are not used: they exclude pre-releases of the fixed version, which are affected, and their behaviour differs
between releases of ``packaging``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from quirks_core.base.errors import DeclarationError
from quirks_core.declaration.trace import Answer
from quirks_core.facts.packages import distribution_of

#: By package, the oldest version that was examined, and whose engines are started. A range that begins there, or has no
#: beginning, leaves earlier ones open.
OLDEST = {"vllm": "0.26"}


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version | None:
    """Returns the version; None if it cannot be parsed, or is a source build named ``0.0.dev…``/``0.1.dev…``."""
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    significant = version.release[: max((n for n, part in enumerate(version.release, 1) if part), default=0)]
    source_build = significant in ((), (0, 1)) and version.is_devrelease
    return None if source_build else version


def is_older(package: str, text: object) -> bool:
    """Returns whether a version is older than the oldest that was examined."""
    oldest, version = parse_version(OLDEST.get(package, "")), parse_version(text) if isinstance(text, str) else None
    return oldest is not None and version is not None and version < oldest


@dataclass(frozen=True, slots=True)
class Affected:
    """A half-open range of versions, ``introduced <= v < fixed``, with the terms of the OSV schema.

    Attributes:
        package: Name of the distribution, for example ``vllm``.
        introduced: First affected version; None if all before `fixed` are.
        fixed: First version that is not affected; a pre-release of it is affected. None while there is no fix.
    """

    package: str
    introduced: str | None = None
    fixed: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "package", distribution_of(self.package))
        low, high = (parse_version(v) if v is not None else None for v in (self.introduced, self.fixed))
        for text, version in ((self.introduced, low), (self.fixed, high)):
            if text is not None and version is None:
                raise DeclarationError(f"Affected({self.package!r}): {text!r} is not a version")
        if low is not None and high is not None and low >= high:
            raise DeclarationError(f"Affected({self.package!r}): introduced {low} must come before fixed {high}")

    def __str__(self) -> str:
        bounds = [f">= {self.introduced}" if self.introduced else "", f"< {self.fixed}" if self.fixed else ""]
        return ", ".join(filter(None, bounds)) or "any version"

    @property
    def bounds(self) -> tuple[Version | None, Version | None]:
        """Both ends, as versions."""
        return parse_version(self.introduced or ""), parse_version(self.fixed or "")

    def overlaps(self, other: Affected) -> bool:
        """Returns whether some version of one package lies in both ranges."""
        (low, high), (other_low, other_high) = self.bounds, other.bounds
        pairs = (low, other_high), (other_low, high)
        return self.package == other.package and all(start is None or end is None or start < end for start, end in pairs)

    def within(self, other: Affected) -> Affected | None:
        """Returns the part that lies in another range of the package, all of a range of another package, or None."""
        if self.package != other.package:
            return self
        if not self.overlaps(other):
            return None
        starts = filter(None, (self.introduced, other.introduced))
        ends = filter(None, (self.fixed, other.fixed))
        return Affected(self.package, max(starts, key=Version, default=None), min(ends, key=Version, default=None))

    def answer(self, installed: str | None) -> Answer:
        """Returns whether an installed version lies in the range.

        Returns:
            `Answer.UNKNOWN` for a missing package or a version that cannot be compared.
        """
        version = parse_version(installed) if installed is not None else None
        if version is None or not any(version.release):  # 0.0.0 is what a build without tags calls itself
            return Answer.UNKNOWN
        low, high = self.bounds
        if low is not None and version < low:
            return Answer.NO
        # A local label (0.9.2+cpu) sorts after its public version, so it needs no special case.
        if high is not None and version >= high:
            return Answer.NO
        return Answer.YES
