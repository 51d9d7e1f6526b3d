"""What ``unread-rank-replies`` puts around a method of vLLM's."""

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["skip_unread_replies"]

_ATTRIBUTE = "_model_quirks_replies"


class _Rank:
    """Replies of one rank, without those to calls that have ended before they were read."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.unread = 0

    def dequeue(self, *args: Any, **named: Any) -> Any:
        while self.unread:
            self.queue.dequeue(*args, **named)
            self.unread -= 1
        return self.queue.dequeue(*args, **named)


class _Call:
    """One rank's queue, as a single call sees it."""

    def __init__(self, rank: _Rank) -> None:
        self.rank = rank
        self.is_read = False

    def dequeue(self, *args: Any, **named: Any) -> Any:
        found = self.rank.dequeue(*args, **named)
        self.is_read = True
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rank.queue, name)


def skip_unread_replies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``MultiprocExecutor.collective_rpc``, whose ranks reply in order, and without saying to what."""

    @functools.wraps(original)
    def collective_rpc(self: Any, *args: Any, **named: Any) -> Any:
        queues = self.response_mqs
        if (ranks := getattr(self, _ATTRIBUTE, None)) is None:
            ranks = [_Rank(queue) for queue in queues]
            setattr(self, _ATTRIBUTE, ranks)
        calls = [_Call(rank) for rank in ranks]
        self.response_mqs = calls
        try:
            return original(self, *args, **named)
        except Exception as error:
            # A call that ended before its first reply, and not by its time limit, may not have been sent.
            if isinstance(error, TimeoutError) or any(call.is_read for call in calls):
                aggregates = any(named.get(one) for one in ("kv_output_aggregator", "ec_output_aggregator"))
                only = None if aggregates else named.get("unique_reply_rank")
                for call in calls if only is None else [calls[only]]:
                    call.rank.unread += not call.is_read
            raise
        finally:
            self.response_mqs = queues

    return collective_rpc
