"""The method that ``prefix-reset-refused`` adds to vLLM's engine core."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc

_LOG = logging.getLogger("model_quirks")


def reset_prefix_cache(self: EngineCoreProc, reset_running_requests: bool = True, reset_connector: bool = False) -> bool:
    """Reset the prefix cache, and preempt running requests, whose blocks vLLM would otherwise not give up.

    It returns whether the cache is reset. The arguments are those of vLLM's method; `reset_running_requests` counts as true.
    """
    from vllm.v1.engine.core import EngineCoreProc

    del reset_running_requests
    reset = super(EngineCoreProc, self).reset_prefix_cache
    try:
        return bool(reset(True, reset_connector))
    except RuntimeError as error:  # requests that wait for keys and values from another engine keep their blocks
        _LOG.warning("reset_prefix_cache: %s", error)
        return False
