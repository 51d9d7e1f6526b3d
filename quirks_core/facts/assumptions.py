"""What the user assumes instead of what is installed (``--assume``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.version import Version

from quirks_core.base.errors import UsageError, nearest, shown
from quirks_core.configuration.slots import Slot
from quirks_core.configuration.yaml_file import read_value
from quirks_core.facts.fact_table import ASSUMABLE
from quirks_core.facts.packages import CPU_KINDS, PACKAGES, PLATFORMS

#: What is taken by its name, as an annotation: the platform, the kind of CPU, and facts.
_TAKES: Mapping[str, Any] = {"platform": Literal[PLATFORMS], "cpu": Literal[tuple(CPU_KINDS)], **ASSUMABLE}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed instead of what is installed; a GPU by its compute capability, times ten."""

    versions: Mapping[str, str]
    platform: str | None = None
    cpu: frozenset[str] | None = None
    gpu: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def parse_assumptions(texts: Iterable[str], more: Iterable[str] = ()) -> Assumptions:
    """Reads ``--assume`` values: ``package==version``, ``platform==name``, ``cpu==kind``, ``gpu==8.0`` or ``fact==value``.

    Packages are those of `PACKAGES` and `more`.

    Raises:
        UsageError: A value cannot be read, or is not what the fact takes; a name is unknown; or a GPU is of another platform.
    """
    packages = sorted({*PACKAGES, *more})
    versions: dict[str, str] = {}
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("=="))
        if not value:
            raise UsageError(
                f"--assume {text!r}: write package==version, for example vllm==0.9.1, platform==cpu, cpu==avx2, or gpu==8.0"
            )
        if name == "gpu" and not re.fullmatch(r"\d{1,2}\.\d", value):
            raise UsageError(f"--assume gpu takes a compute capability as 8.0 (A100) or 9.0 (H100), not {shown(value, 100)}")
        if name == "gpu":
            values[name] = int(value.replace(".", ""))
        elif name in _TAKES:
            values[name] = _assumed(Slot(name, _TAKES[name]), value)
        elif name not in packages:
            known = [*packages, "platform", "cpu", "gpu", *ASSUMABLE]
            raise UsageError(f"--assume: unknown package {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        else:
            try:
                Version(value)
            except ValueError:  # InvalidVersion, or a number of thousands of digits
                raise UsageError(f"--assume {shown(text, 100)}: {shown(value, 100)} is not a version") from None
            versions[name] = value
    platform, cpu, gpu = (values.pop(name, None) for name in ("platform", "cpu", "gpu"))
    if gpu and platform not in (None, "cuda"):
        raise UsageError(f"--assume gpu is of platform==cuda, not of {platform}")
    return Assumptions(versions, platform or ("cuda" if gpu else "cpu" if cpu else None), CPU_KINDS.get(cpu), gpu, values)


def _assumed(fact: Slot, text: str) -> Any:
    value = read_value(text, f"--assume {fact.name}")
    if problem := fact.problem(value):
        raise UsageError(f"--assume: {problem}")
    return value
