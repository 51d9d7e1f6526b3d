"""The function that ``dp-coordinator-timeout`` puts into vLLM.

Only processes that start engines import this module; vLLM is imported when a function runs, because a patch may come into force
while vLLM is being imported.
"""

import multiprocessing.connection
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["wrap_wait_for_addresses"]

#: Seconds that vLLM itself waits for its coordinator.
_OWN_LIMIT_S = 120


def wrap_wait_for_addresses(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the start of a data-parallel group wait for its coordinator as long as for its engines."""

    @wraps(original)
    def _wait_for_zmq_addrs(self: Any, zmq_addr_pipe: Any) -> Any:
        from vllm import envs

        longer = max(0, envs.VLLM_ENGINE_READY_TIMEOUT_S - _OWN_LIMIT_S)
        multiprocessing.connection.wait([zmq_addr_pipe, self.proc.sentinel], timeout=longer)
        return original(self, zmq_addr_pipe)  # which sees at once what has come, or waits the rest of the time

    return _wait_for_zmq_addrs
