"""Validates the JSON of a request before the engine sees it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from quirks_core.base.text import listed
from worker.server.errors import RequestError


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
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        shown = listed((f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problems), separator="; ")
        parameter = next((str(item["loc"][0]) for item in problems if item["loc"]), None)
        raise RequestError(f"the request is not valid: {shown}", parameter=parameter) from None
    except Exception as error:
        parameter = getattr(error, "parameter", None)
        raise RequestError(f"the request is not valid: {error}", parameter=parameter) from error
    for name in ("kv_transfer_params", "ec_transfer_params"):  # `vllm_xargs` holds no objects; the engine would fail at them
        if name in (getattr(request, "vllm_xargs", None) or {}):
            raise RequestError(f"{name} takes an object, as a field of the request", parameter=f"vllm_xargs.{name}")
    return request


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
    for name, ids in given.items():
        if (wrong := next((token for token in ids if not 0 <= token < size), None)) is not None:
            raise RequestError(f"{name}: token id {wrong} is outside the vocabulary of {size} ids", parameter=name)
