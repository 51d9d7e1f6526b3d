"""The function that ``packed-broadcast-order`` puts into vLLM.

Only engine processes import this module.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["wrap_consumer"]


def wrap_consumer(original: Callable[..., None]) -> Callable[..., None]:
    """Make a packed broadcast receive and load on one stream, so that one pack is loaded before the next one is received."""
    signature = inspect.signature(original)

    @wraps(original)
    def packed_nccl_broadcast_consumer(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.arguments["num_buffers"] = 1
        original(*given.args, **given.kwargs)

    return packed_nccl_broadcast_consumer
