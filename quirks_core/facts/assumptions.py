"""What the user assumes instead of what is installed (``--assume``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from quirks_core.base.errors import UsageError, nearest, shown
from quirks_core.configuration.slots import Slot
from quirks_core.configuration.yaml_file import read_value
from quirks_core.facts.packages import CPU_KINDS, PACKAGES, PLATFORMS

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed instead of what is installed; a GPU by its compute capability, times ten."""

    versions: Mapping[str, str]
    platform: str | None = None
    cpu: frozenset[str] | None = None
    gpu: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def parse_assumptions(texts: Iterable[str], more: Iterable[str] = (), facts: Mapping[str, Any] = _NONE) -> Assumptions:
    """Reads ``--assume`` values: ``package==version``, ``platform==name``, ``cpu==kind``, ``gpu==8.0`` or ``fact==value``.

    Args:
        texts: The values.
        more: Packages that may be named besides those of `PACKAGES`.
        facts: Other facts that may be named, and what each takes, as an annotation.

    Raises:
        UsageError: A value cannot be read, or is not what the fact takes; a name, platform or kind of CPU is unknown; or a GPU
            is of another platform.
    """
    packages = sorted({*PACKAGES, *more})
    versions: dict[str, str] = {}
    chosen: dict[str, str] = {}
    values: dict[str, Any] = {}
    known_names = {"platform": PLATFORMS, "cpu": tuple(CPU_KINDS)}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("=="))
        if not value:
            raise UsageError(
                f"--assume {text!r}: write package==version, for example vllm==0.9.1, platform==cpu, cpu==avx2, or gpu==8.0"
            )
        if name == "gpu" and not re.fullmatch(r"\d{1,2}\.\d", value):
            raise UsageError(f"--assume gpu takes a compute capability as 8.0 (A100) or 9.0 (H100), not {shown(value, 100)}")
        if (names := known_names.get(name)) is not None and value not in names:
            raise UsageError(f"--assume: unknown {name} {value!r}{nearest(value, names)} (known: {', '.join(names)})")
        if name in facts:
            values[name] = _assumed(Slot(name, facts[name]), value)
            continue
        if name in (*known_names, "gpu"):
            chosen[name] = value
            continue
        if name not in packages:
            known = [*packages, *known_names, "gpu", *facts]
            raise UsageError(f"--assume: unknown package {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        try:
            Version(value)
        except ValueError:  # InvalidVersion, or a number of thousands of digits
            raise UsageError(f"--assume {shown(text, 100)}: {shown(value, 100)} is not a version") from None
        versions[name] = value
    platform, cpu, gpu = (chosen.get(name) for name in ("platform", "cpu", "gpu"))
    if gpu and platform not in (None, "cuda"):
        raise UsageError(f"--assume gpu=={gpu} is of platform==cuda, not of {platform}")
    capability = int(gpu.replace(".", "")) if gpu else None
    platform = platform or ("cuda" if gpu else "cpu" if cpu else None)
    return Assumptions(versions, platform, CPU_KINDS.get(cpu or ""), capability, values)


def _assumed(fact: Slot, text: str) -> Any:
    try:
        value = read_value(text)
    except ValueError as error:
        raise UsageError(f"--assume {fact.name}: {error}") from None
    if problem := fact.problem(value):
        raise UsageError(f"--assume: {problem}")
    return value
