"""vLLM's batch-invariant mode: its kernels give the same numbers for a token in every batch."""

from __future__ import annotations

from typing import Final

from quirks_core.source.vllm_source import INSTALLED

#: The variable that switches it on.
BATCH_INVARIANT: Final = "VLLM_BATCH_INVARIANT"
#: By platform, the module of vLLM that reads the variable where the platform has the mode.
_READERS: Final = {"cuda": "vllm.envs", "rocm": "vllm.platforms.rocm", "xpu": "vllm.platforms.xpu"}


def offers_batch_invariance(platform: str | None) -> bool:
    """Returns whether the installed vLLM has the mode on a platform."""
    reader = _READERS.get(platform or "")
    return reader is not None and bool(INSTALLED.search(reader, BATCH_INVARIANT))
