"""Limits of a single request. Requests share an event loop, a tokenizer thread and an engine, so a huge one delays all others.

They apply to the parsed JSON, before vLLM validates it. Large requests are parsed and measured in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from quirks_core.base.errors import words
from worker.server.errors import RequestError
from worker.server.prefix_tokens import CARRIED

if TYPE_CHECKING:
    from quirks_core.configuration.config import ServerSection

#: Default of ``server.max_prompt_chars``: characters per token of the context, and the least.
_CHARS_PER_TOKEN = 8
_LEAST_CHARS = 65_536
#: What a message, list or object counts in addition to its content: about what a chat template writes around a message.
_CHARS_PER_CONTAINER = 8
#: Requests up to this size are parsed in the event loop: a thread would take longer.
_SMALL_BYTES = 16_384
#: Prompts above this length are rendered one at a time.
_HEAVY_CHARS = 32_768
#: Parts of a message that are not text.
_MEDIA = ("image_url", "image_embeds", "image_pil", "audio_url", "audio_embeds", "input_audio", "video_url")


class Limits:
    """The limits of one server.

    Args:
        section: The server's configuration.
        longest: The longest sequence of the engine, in tokens.
    """

    def __init__(self, section: ServerSection, *, longest: int) -> None:
        #: Largest request, in bytes.
        self.max_body = int(section.max_body_mb * 1e6)
        self._choices = section.max_choices
        self._chars = section.max_prompt_chars or max(_LEAST_CHARS, _CHARS_PER_TOKEN * longest)
        #: vLLM renders in one thread: with this, a short prompt waits for at most one long prompt in front of it.
        self._heavy = asyncio.Semaphore(1)

    async def parse(self, raw: bytes) -> dict[str, Any]:
        """Returns the JSON object of a request.

        Raises:
            RequestError: The body is not a JSON object, or exceeds a limit.
        """
        return self._parsed(raw) if len(raw) <= _SMALL_BYTES else await asyncio.to_thread(self._parsed, raw)

    def turn(self, messages: Sequence[Any]) -> AbstractAsyncContextManager[None]:
        """Returns the context in which to render messages or texts: exclusive if they are long, otherwise empty."""
        return self._heavy if _exceeds(_HEAVY_CHARS, _texts(messages)) else nullcontext()

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        too_long = RequestError(f"the request has more text than server.max_prompt_chars = {self._chars} characters")
        # Each bracket counts one at least; parsing holds the GIL, and takes about 1 µs for each list or object.
        if raw.count(b"[") + raw.count(b"{") > self._chars:
            raise too_long
        try:
            body = msgspec.json.decode(raw)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the request is not valid JSON: {words(error)}") from None
        if not isinstance(body, dict):
            raise RequestError(f"the request must be a JSON object, not {type(body).__name__}")
        choices = body.get("n")
        if isinstance(choices, int) and choices > self._choices:
            raise RequestError(f"n = {choices} is above server.max_choices = {self._choices}", parameter="n")
        messages = body.get("messages")
        texts = _texts(messages) if isinstance(messages, list) else []
        prompt = body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and not isinstance(next(iter(prompt), 0), int) else 1
        if _exceeds(prompts * self._chars, [*texts, *(value for name, value in body.items() if name != "messages")]):
            raise too_long
        return body


def _texts(messages: Sequence[Any]) -> list[Any]:
    """Returns the content of messages without media and carried ids."""
    found: list[Any] = []
    for message in messages:
        fields = message.items() if isinstance(message, dict) else [("", message)]
        for name, value in fields:
            if name not in CARRIED:
                found += map(_without_media, value) if isinstance(value, list) else [value]
        found.append([])  # counts as a container
    return found


def _without_media(part: Any) -> Any:
    return {name: value for name, value in part.items() if name not in _MEDIA} if isinstance(part, dict) else part


def _exceeds(most: int, values: list[Any]) -> bool:
    """Whether values have more text: characters, and for each number one. Not recursive: JSON may nest deeper than calls."""
    waiting, found = list(values), 0
    while waiting and found <= most:
        value = waiting.pop()
        if isinstance(value, str):
            found += len(value)
        elif isinstance(value, list):
            found += _CHARS_PER_CONTAINER
            waiting.extend(value)
        elif isinstance(value, dict):
            found += _CHARS_PER_CONTAINER
            waiting.extend((*value, *value.values()))
        elif value is not None:
            found += 1
    return found > most
