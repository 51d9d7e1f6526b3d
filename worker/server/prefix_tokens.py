"""Keeps the exact token ids that a model produced when its text comes back as chat history.

A chat template renders history from text, and text does not always turn back into the ids that it came from: the model may
have produced ``" Ski" "nny"`` where the tokenizer would encode ``" Skinny"``. A trainer must see the ids that were sampled, so
the head of the rendered prompt is replaced by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quirks_core.base.errors import shortened
from worker.server.errors import PrefixTokensError, RequestError

#: The fields of a reply's message from which a later request takes the ids of that message.
CARRIED = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "weight_versions", "routed_experts")


@dataclass(frozen=True, slots=True)
class Prefix:
    """Ids that a prompt must start with.

    Attributes:
        token_ids: The ids.
        messages: How many messages from the front of the conversation they stand for.
        source: The field of the request that they come from.
    """

    token_ids: tuple[int, ...]
    messages: int
    source: str


def replace_prefix_tokens(
    tokenizer: Any,
    model_prefix_token_ids: Sequence[int],
    template_prefix_token_ids: Sequence[int],
    template_token_ids: Sequence[int],
    *,
    end_token_id: int | None = None,
) -> list[int]:
    """Replaces the chat template's rendering of earlier messages by the ids that the model produced.

    Both renderings hold the same number of end-of-turn tokens up to the last turn of the prefix, also where the template strips
    the reasoning from history and they have different lengths. So the ends are counted: if the rendered prefix holds N of
    them, the result is the model's ids followed by what comes after the N-th in the whole rendering.

    Args:
        tokenizer: Its ``eos_token_id`` ends a turn.
        model_prefix_token_ids: What the model saw and generated so far, prompt and generation of the last turn; it may or may
            not end in an end of turn. Empty leaves the rendering as it is.
        template_prefix_token_ids: The chat template's rendering of the same messages, without a generation prompt.
        template_token_ids: The chat template's rendering of the whole conversation.
        end_token_id: What ends a turn, for templates that take another token than the tokenizer's end of sequence (Gemma's
            ``<end_of_turn>``); the tokenizer's ``eos_token_id`` if None.

    Returns:
        Ids that start with all of ``model_prefix_token_ids`` and end as ``template_token_ids`` ends.

    Raises:
        PrefixTokensError: No end of turn is known, or the renderings do not hold the same turns.
    """
    if not model_prefix_token_ids:
        return list(template_token_ids)
    end = tokenizer.eos_token_id if end_token_id is None else end_token_id
    if end is None:
        raise PrefixTokensError("the tokenizer has no eos_token_id, so the end of an assistant's turn is unknown")
    turns = sum(token == end for token in template_prefix_token_ids)
    if turns == 0:
        raise PrefixTokensError(
            f"the chat template ends no turn of the required prefix with an end-of-turn token (id {end}); "
            "a template that does not end its turns cannot keep a model's ids"
        )
    found = [position for position, token in enumerate(template_token_ids) if token == end]
    if len(found) < turns:
        raise PrefixTokensError(
            f"the chat template ends {turns} turns of the required prefix but only {len(found)} of the whole conversation; "
            "it must render the same messages the same way in both"
        )
    # Where the model ended its turn itself, its own token stays; where it was cut off, the template's is needed.
    tail = found[turns - 1] + (model_prefix_token_ids[-1] == end)
    return [*model_prefix_token_ids, *template_token_ids[tail:]]


def without_answers(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with an ``x`` for what assistants say.

    A template may leave a thought out of history, so an end of turn that it spells would be in one of two renderings alone.
    """
    kept = ("role", "name", "tool_calls")
    return [
        {name: message[name] for name in kept if name in message} | {"content": "x" if message.get("content") else ""}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]


def prefix_of(messages: list[Any], required: object = None) -> Prefix | None:
    """Finds the ids that a request's prompt must start with.

    Those of ``required_prefix_token_ids``, which stand for all messages up to the last assistant's; otherwise those that the
    last message with ``prompt_token_ids`` and ``generation_token_ids`` carries, which stand for all messages up to it.

    Args:
        messages: The messages of a chat or tokenize request, as JSON gives them.
        required: Its ``required_prefix_token_ids``.

    Returns:
        None if nothing is required.

    Raises:
        RequestError: The ids are no list of token ids, or a message carries only one of its two parts.
    """
    numbered = [(end, message) for end, message in enumerate(messages, 1) if isinstance(message, dict)]
    if required is not None:
        end = max((end for end, message in numbered if message.get("role") == "assistant"), default=len(messages))
        name = "required_prefix_token_ids"
        return Prefix(ids, end, name) if (ids := _token_ids(required, name)) else None
    for end, message in reversed(numbered):
        if message.get("prompt_token_ids") is not None:
            source = f"messages[{end - 1}]"
            prompt, generated = (_token_ids(message.get(name), f"{source}.{name}") for name in CARRIED[:2])
            return Prefix(ids, end, source) if (ids := prompt + generated) else None
    return None


def without_carried(messages: list[Any]) -> list[Any]:
    """Returns the messages without what they carry, so that no template can show it to the model."""
    return [
        {key: value for key, value in message.items() if key not in CARRIED} if isinstance(message, dict) else message
        for message in messages
    ]


def _token_ids(value: Any, name: str) -> tuple[int, ...]:
    # `type() is int`: JSON's true is no token id.
    wrong = [token for token in value if type(token) is not int or token < 0] if isinstance(value, list) else [value]
    if wrong:
        shown = shortened(repr(wrong[0]), most=80)
        raise RequestError(f"{name} must be a list of token ids (integers from 0 on), not {shown}", parameter=name)
    return tuple(value)
