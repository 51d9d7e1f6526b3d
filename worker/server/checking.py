"""Validates the JSON of a request; errors name the client's fields and values, and no Python class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from quirks_core.base.errors import shortened
from quirks_core.base.text import listed
from worker.server.errors import RequestError

#: How many problems of one request its error lists.
_SHOWN = 5
#: Fields that never reach the engine as they are.
_STAYS_HERE = ("messages", "required_prefix_token_ids")
#: Parameters of vLLM that are objects, which `vllm_xargs` cannot hold: the engine would fail at them.
_OBJECTS = ("kv_transfer_params", "ec_transfer_params")
#: The class that pydantic names beside the mapping that it accepts.
_INSTANCE = re.compile(r" or (an )?instance of \w+")
#: The parameter that vLLM appends to a message; a reply has a field for it.
_DETAILS = re.compile(r" \((parameter|value)=.*\)$", re.DOTALL)
#: Where in its sources xgrammar found the mistake.
_SOURCE = re.compile(r"\[[\d:]+\] \S+\.cc:\d+: ")
#: The message for a request that exceeds Python's recursion limit.
TOO_DEEP = "the request is nested too deeply, or a schema in it refers to itself without end"


def checked(form: type[BaseModel], body: dict[str, Any]) -> Any:
    """Validates a request.

    Args:
        form: The pydantic model.
        body: The request, as JSON gives it.

    Raises:
        RequestError: It does not have that form. vLLM's own validators raise other errors for some shapes; this converts them
            too.
    """
    try:
        request = form.model_validate(body)
    except ValidationError as error:
        raise _refusal(_problems(error), body) from None
    except RecursionError:
        raise RequestError(TOO_DEEP) from None
    except Exception as error:
        if problems := _misshapen(form, body):
            raise _refusal(problems, body) from None
        message = plain_message(error)
        parameter = getattr(error, "parameter", None) or subject(message, form)
        raise RequestError(f"the request is not valid: {message}", parameter=parameter) from error
    for name in _OBJECTS:
        if name in (getattr(request, "vllm_xargs", None) or {}):
            raise RequestError(f"{name} takes an object, as a field of the request", parameter=f"vllm_xargs.{name}")
    return request


def plain_message(error: BaseException) -> str:
    """Returns an error's message for a client: without its class, parameter, value and line of source."""
    try:
        text = _SOURCE.sub("", _DETAILS.sub("", str(error)))
    except Exception:
        text = ""
    return shortened(text.strip()) or "no reason was given"


def subject(message: str, form: type[BaseModel]) -> str | None:
    """Returns the field that a message of vLLM's begins with; None if it begins otherwise."""
    first = message.partition(" ")[0].strip("`'")
    return first if first in form.model_fields else None


def _problems(error: ValidationError, *outer: str) -> list[Any]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{**item, "loc": (*outer, *item["loc"])} for item in found]


def _misshapen(form: type[BaseModel], body: dict[str, Any]) -> list[Any]:
    """Validates each field by its type alone, without the validators that failed; returns the problems."""
    found = []
    for name in body.keys() & form.model_fields.keys():
        kind: Any = form.model_fields[name].annotation
        try:
            TypeAdapter(kind).validate_python(body[name])
        except ValidationError as error:
            found += _problems(error, name)
    return found


def _refusal(problems: list[Any], body: dict[str, Any]) -> RequestError:
    fields = [_field(item["loc"], body, missing=item["type"] == "missing") for item in problems]
    messages = (f"{field}: {_INSTANCE.sub('', item['msg'])}" for field, item in zip(fields, problems, strict=True))
    return RequestError(f"the request is not valid: {listed(dict.fromkeys(messages), _SHOWN, '; ')}", parameter=fields[0])


def check_integers(body: dict[str, Any]) -> None:
    """Refuses integers of more than 64 bits: vLLM registers a request before it fails to send them to its engine.

    Args:
        body: The request, as JSON gives it.

    Raises:
        RequestError: There is such an integer.
    """
    pending = [item for item in body.items() if item[0] not in _STAYS_HERE]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += [(name, item) for item in value.values()]
        elif isinstance(value, list):
            pending += [(name, item) for item in value]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise RequestError(f"{name}: an integer must have at most 64 bits", parameter=name)


def check_prefix(request: Any, *, templated: bool) -> None:
    """Refuses a required prefix that could not be kept.

    Args:
        request: A chat request with a prefix.
        templated: A chat template renders the messages.

    Raises:
        RequestError: It could not.
    """
    source = request._prefix.source
    if not templated:
        raise RequestError("gpt-oss is not rendered by a chat template; no prefix can be required", parameter=source)
    if request.truncate_prompt_tokens is not None:
        raise RequestError("truncate_prompt_tokens would cut the required prefix; leave one of them out", parameter=source)


def check_ids(request: Any, size: int) -> None:
    """Refuses ids that the model's embedding has no row for, before they reach the engine.

    Args:
        request: A request of any kind.
        size: How many ids there are.

    Raises:
        RequestError: There is such an id.
    """
    prefix = getattr(request, "_prefix", None)
    given = {prefix.source: prefix.token_ids} if prefix else {}
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens"):
        given[name] = getattr(request, name, None) or ()
    given["logit_bias"] = tuple(_integer(key, "logit_bias") for key in getattr(request, "logit_bias", None) or ())
    for name, ids in given.items():
        if (wrong := next((token for token in ids if not 0 <= token < size), None)) is not None:
            raise RequestError(f"{name}: token id {wrong} is outside the vocabulary of {size} ids", parameter=name)


def _integer(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"{name}: {text!r:.80} is no token id", parameter=name) from None


def _field(location: Sequence[int | str], body: Any, *, missing: bool) -> str:
    """Returns the field that pydantic means, as the client wrote it: its names for branches and wrappers are left out."""
    found: list[str] = []
    for position, part in enumerate(location):
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            if not (missing and position == len(location) - 1):
                continue
        found.append(str(part))
    return ".".join(found) or "body"
