"""The method that ``paused-requests-refused`` puts in the place of vLLM's."""

from typing import Any

__all__ = ["queue_add_while_paused"]


def queue_add_while_paused(self: Any, request: Any) -> bool:
    """Tells that a request is not refused, so that the scheduler queues it until generation resumes."""
    del self, request
    return False
