"""vLLM's batch-invariant mode: its kernels give the same numbers for a token in every batch."""

from __future__ import annotations

from typing import Final

from quirks_core.source.vllm_source import INSTALLED

#: The variable that switches it on.
BATCH_INVARIANT: Final = "VLLM_BATCH_INVARIANT"


def offers_batch_invariance(platform: str | None) -> bool:
    """Returns whether the installed vLLM has the mode on a platform."""
    return platform == "cuda" and bool(INSTALLED.search("vllm.envs", f'"{BATCH_INVARIANT}"'))
