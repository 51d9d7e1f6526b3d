"""Runs first in every Python program that tests start, and in the processes of its engines.

Imports of vLLM and torch make objects by the hundred thousand, and Python looks through all of them again and again: while it
imports, and when a program ends. Without that a program that does nothing but import vLLM takes 6 s instead of 10.
"""

import atexit
import gc
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any


def _end() -> None:
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries of bindings report what is not collected any more as leaks


def _without_avx512(torch_cpu: ModuleType) -> None:
    """Makes vLLM load its kernels for AVX2: it asks these functions, and nothing else, what an x86 CPU can do."""
    for feature in ("avx512", "avx512_bf16", "amx_tile", "amx_fp16", "vnni"):
        setattr(torch_cpu, f"_is_{feature}_supported", lambda: False)


def _flags_without_avx512(packages: Any) -> None:
    original = packages.cpu_flags

    def flags() -> frozenset[str] | None:
        found = original()
        newer = ("avx512", "avx_", "amx")
        return None if found is None else frozenset(flag for flag in found if not flag.startswith(newer))

    packages.cpu_flags = flags


if os.environ.get("TESTS_CPU") == "avx2":
    with suppress(ImportError):  # an environment without model-quirks
        from quirks_core.apply.imports import when_imported

        os.environ.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
        when_imported("torch.cpu", _without_avx512)
        when_imported("quirks_core.facts.packages", _flags_without_avx512)

forked = tuple(os.environ.get("TESTS_FORKED", "").split())  # scripts that programs start; their only option is -u
is_forked = any(word.endswith("default_worker.py") for word in sys.orig_argv)  # a worker of Ray's that will be an engine
is_forked |= any(word.endswith(forked) for word in sys.orig_argv[1:3])
if is_forked and os.path.exists(server := os.environ.get("TESTS_FORK_SERVER", "")):  # noqa: PTH110 - no import for it
    from forked_programs import handed_over

    os._exit(handed_over(server))

gc.set_threshold(50_000, 20, 20)
gc.unfreeze = lambda: None  # vLLM calls it when an engine ends, and then collects what is freed with the process anyway
atexit.register(_end)  # the first that is registered is the last that runs
