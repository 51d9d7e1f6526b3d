"""What vLLM's functions become."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_TRIES = 64


def declares_its_head(construct: Callable[..., None]) -> Callable[..., None]:
    """Says of a draft whether it has a head of its own."""

    @wraps(construct)
    def wrapped(draft: Any, *args: Any, **kwargs: Any) -> None:
        construct(draft, *args, **kwargs)
        draft.has_own_lm_head = draft.config.draft_vocab_size != draft.config.vocab_size

    return wrapped


def made_once_more(construct: Callable[..., None]) -> Callable[..., None]:
    """Makes a queue again that lost its port."""

    @wraps(construct)
    def wrapped(queue: Any, *args: Any, **kwargs: Any) -> None:
        import zmq

        for left in reversed(range(_TRIES)):
            try:
                return construct(queue, *args, **kwargs)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or not left:
                    raise
        return None

    return wrapped


def past_the_queue(choose: Callable[..., int]) -> Callable[..., int]:
    """Looks for the store's port behind those of the queue."""

    @wraps(choose)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        from vllm import envs
        from vllm.utils.network_utils import _get_open_port

        if envs.VLLM_PORT is None:
            return choose(*args, **kwargs)
        try:
            return int(_get_open_port(start_port=envs.VLLM_PORT + 32, max_attempts=32))
        except RuntimeError:
            return choose(*args, **kwargs)

    return wrapped
