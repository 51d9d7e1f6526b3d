"""The lifecycle stage of a quirk: active, dormant on the installed engine, or expired.

Expiry depends on versions, not on dates: a quirk is expired when every supported engine version has the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto

from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.declaration.versions import Affected, parse_version
from quirks_core.facts.context import Installation
from quirks_core.plan.evaluate import affected
from quirks_core.plan.loaded import Loaded

#: The oldest supported versions. (The worker starts engines from 0.26 on; a trainer with its own engine can use older ones.)
#: Raising one expires the quirks for versions below it, and a test then requires their removal.
SUPPORTED_FLOOR: Mapping[str, str] = {"vllm": "0.9.0"}


class Stage(StrEnum):
    """The lifecycle stage of a quirk."""

    ACTIVE = auto()  #: the installed packages are affected, or may be
    DORMANT = auto()  #: the installed packages have the fix, supported older ones do not
    EXPIRED = auto()  #: every supported version has the fix: delete it


def lifecycle(item: Loaded, installed: Mapping[str, str] | None = None) -> Stage:
    """Returns a quirk's lifecycle stage.

    Args:
        item: The quirk.
        installed: Versions by package; what is installed if None.
    """
    if expired(item.quirk):
        return Stage.EXPIRED
    is_fixed = affected(Installation(installed), item.quirk).answer is Answer.NO
    return Stage.DORMANT if is_fixed else Stage.ACTIVE


def expired(quirk: Quirk) -> str:
    """Returns why no supported version is affected; empty if one is."""
    for package in dict.fromkeys(ranged.package for ranged in quirk.affected):
        floor = SUPPORTED_FLOOR.get(package)
        ranges = [ranged for ranged in quirk.affected if ranged.package == package]
        if floor is not None and all(_ends_below(ranged, floor) for ranged in ranges):
            last = " and ".join(str(ranged.fixed) for ranged in ranges)
            return f"{package} is fixed in {last}, and nothing below {floor} is supported: delete this quirk"
    return ""


def _ends_below(ranged: Affected, floor: str) -> bool:
    fixed, lowest = parse_version(ranged.fixed or ""), parse_version(floor)
    return fixed is not None and lowest is not None and fixed <= lowest
