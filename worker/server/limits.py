"""Limits of a single request. Requests share an event loop, a tokenizer thread and an engine, so a huge one delays all others.

The limits apply to the parsed JSON, before vLLM validates it. Large requests are parsed and checked in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from quirks_core.errors import words
from worker.server.errors import RequestError
from worker.server.prefix_tokens import CARRIED

if TYPE_CHECKING:
    from quirks_core.config import ServerSection

#: Default of ``server.max_prompt_chars``: characters per token of the context, and the least.
_CHARS_PER_TOKEN = 8
_LEAST_CHARS = 65_536
#: Most lists and objects of a request. Parsing holds the GIL, and creating them takes about 1 µs each.
_MOST_BRACKETS = 200_000
#: Most entries of any top-level list or object.
_MOST_ENTRIES = 1_000_000
#: Requests up to this size are parsed in the event loop: a thread would take longer.
_SMALL_BYTES = 16_384
#: Prompts above this length are rendered one at a time.
_HEAVY_CHARS = 32_768
#: Fields with text for the chat template or the tokenizer, in addition to the messages.
_TEXTS = ("prompt", "tools", "documents", "chat_template_kwargs")
#: Parts of a message that are not text.
_MEDIA = ("image_url", "image_embeds", "image_pil", "audio_url", "audio_embeds", "input_audio", "video_url")
#: Fields that are compiled to a grammar.
_GRAMMARS = ("structured_outputs", "response_format")


class Limits:
    """The limits of one server.

    Args:
        section: The server's configuration.
        longest: The longest sequence of the engine, in tokens.
    """

    def __init__(self, section: ServerSection, *, longest: int) -> None:
        self._section = section
        self._longest = longest
        self._chars = section.max_prompt_chars or max(_LEAST_CHARS, _CHARS_PER_TOKEN * longest)
        #: vLLM renders in one thread: with this, a short prompt waits for at most one long prompt in front of it.
        self._heavy = asyncio.Semaphore(1)

    @property
    def max_body(self) -> int:
        """Largest request, in bytes."""
        return int(self._section.max_body_mb * 1e6)

    async def parse(self, raw: bytes) -> dict[str, Any]:
        """Returns the JSON object of a request.

        Raises:
            RequestError: The body is not a JSON object, or exceeds a limit.
        """
        return self._parsed(raw) if len(raw) <= _SMALL_BYTES else await asyncio.to_thread(self._parsed, raw)

    def turn(self, messages: Sequence[Any]) -> AbstractAsyncContextManager[None]:
        """Returns the context in which to render messages or texts: exclusive if they are long, otherwise empty."""
        return self._heavy if _count_messages(messages)[1] > _HEAVY_CHARS else nullcontext()

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        if raw.count(b"[") + raw.count(b"{") > _MOST_BRACKETS:
            raise RequestError(f"the request has more than {_MOST_BRACKETS} opening brackets: too many lists and objects")
        try:
            body = msgspec.json.decode(raw)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the request is not valid JSON: {words(error)}") from None
        if not isinstance(body, dict):
            raise RequestError(f"the request must be a JSON object, not {type(body).__name__}")
        self._check(body)
        return body

    def _check(self, body: dict[str, Any]) -> None:
        section = self._section
        choices = body.get("n")
        if isinstance(choices, int) and choices > section.max_choices:
            raise RequestError(f"n = {choices} is above server.max_choices = {section.max_choices}", parameter="n")
        messages = body.get("messages")
        items, chars = (len(messages), 0) if isinstance(messages, list) else (0, 0)
        if items <= section.max_messages:
            items, chars = _count(body)
        if items > section.max_messages:
            told = f"the request has {items} messages and parts, more than server.max_messages = {section.max_messages}"
            raise RequestError(told, parameter="messages")
        if chars > self._chars:
            parameter = "prompt" if "prompt" in body else "messages"
            told = f"the prompt has {chars} characters, more than server.max_prompt_chars = {self._chars}"
            raise RequestError(told, parameter=parameter)
        self._check_lists(body)
        self._check_grammars(body)

    def _check_lists(self, body: dict[str, Any]) -> None:
        messages = body.get("messages")
        carrying = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
        prefixes = [(f"messages.{name}", message.get(name)) for message in carrying for name in CARRIED[:2]]
        for name, ids in (*prefixes, ("required_prefix_token_ids", body.get("required_prefix_token_ids"))):
            if isinstance(ids, list) and len(ids) > self._longest:
                told = f"{name} has {len(ids)} token ids, more than engine.max_model_len = {self._longest}"
                raise RequestError(told, parameter=name)
        for name, value in body.items():
            most = self._chars if name == "tokens" else _MOST_ENTRIES
            if isinstance(value, list | dict) and len(value) > most:
                raise RequestError(f"{name} has {len(value)} entries, more than {most}", parameter=name)

    def _check_grammars(self, body: dict[str, Any]) -> None:
        most, choice = self._section.max_grammar_chars, body.get("tool_choice")
        forced = choice == "required" or isinstance(choice, dict)
        for name in (*_GRAMMARS, "tools") if forced else _GRAMMARS:
            if (size := _characters([body.get(name)])) > most:
                told = f"{name} has {size} characters, more than server.max_grammar_chars = {most}"
                raise RequestError(told, parameter=name)


def _count(body: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of messages and parts, and the number of characters of the request's text."""
    messages = body.get("messages")
    items, characters = _count_messages(messages) if isinstance(messages, list) else (0, 0)
    return items, characters + _characters(body.get(name) for name in _TEXTS)


def _count_messages(messages: Sequence[Any]) -> tuple[int, int]:
    fields = (message.items() if isinstance(message, dict) else (("", message),) for message in messages)
    values = [value for found in fields for name, value in found if name not in CARRIED]
    items = len(messages) + sum(len(value) for value in values if isinstance(value, list))
    parts = (part for value in values for part in (value if isinstance(value, list) else (value,)))
    return items, _characters(_without_media(part) for part in parts)


def _without_media(part: Any) -> Any:
    return {name: value for name, value in part.items() if name not in _MEDIA} if isinstance(part, dict) else part


def _characters(values: Iterable[Any]) -> int:
    """Counts the characters of all texts, and each number as one. Not recursive: JSON may nest deeper than Python's calls."""
    waiting, found = list(values), 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found += len(value)
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend((*value, *value.values()))
        elif value is not None:
            found += 1
    return found
