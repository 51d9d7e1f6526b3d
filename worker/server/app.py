"""vLLM's routes as an application of ours, in which every error has OpenAI's form.

Import it after the plan is in force, because it imports vLLM. Only these routes exist: vLLM's own application has others, which
sample otherwise than the rollout (``/v1/responses``, ``/v1/messages``) or call into the engine.
"""

# No postponed annotations: FastAPI reads those of the routes.
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from vllm import exceptions
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.models.api_router import show_available_models
from vllm.entrypoints.serve.tokenize.api_router import detokenize, tokenize
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeCompletionRequest
from vllm.entrypoints.serve.utils.api_utils import validate_json_request

from quirks_core.base.errors import QuirksError, words
from worker.errors import RefitError, RefitRejectedError, SleepError, UpdateOrderError
from worker.server.access import HEALTH, refused
from worker.server.errors import RequestError
from worker.server.results import found
from worker.server.serving import ChatRequest, Serving, TextRequest, TokenizeRequest

_LOG = logging.getLogger(__name__)
_ERRORS = "vllm.entrypoints.serve.exception_handling.error_response", "vllm.entrypoints.serve.utils.error_response"
_error_response = found("create_error_response", *_ERRORS)
#: Starlette answers what only ``Exception`` catches too, but logs its traceback: a bug. vLLM's base exists from 0.27 on.
_VLLM = getattr(exceptions, "VLLMError", exceptions.VLLMValidationError)
_OTHERS = (_VLLM, ValueError, TypeError, OverflowError, NotImplementedError)
#: HTTP status of the worker's errors; all others have 503.
_STATUSES = ((UpdateOrderError, 409), (RefitRejectedError, 400), (RefitError, 500), (SleepError, 400))


def new_app() -> FastAPI:
    """Returns an application without routes."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for kind in (HTTPException, RequestValidationError, QuirksError, *_OTHERS, Exception):
        app.add_exception_handler(kind, _answer)
    return app


def openai_app(serving: Serving, *, completions: bool) -> FastAPI:
    """Returns the application of the routes that need no trainer.

    Args:
        serving: What answers.
        completions: Add ``/v1/completions``, from which trainers sample by token ids.
    """

    def add(path: str, call: Callable[..., Coroutine[Any, Any, Any]], form: Any) -> None:
        async def route(request: form, raw_request: Request) -> Any:
            await serving.prepare(request)
            return await call(request, raw_request)

        # A browser sends JSON to another origin only after a preflight request, so this keeps web pages out.
        app.post(path, response_model=None, dependencies=[Depends(validate_json_request)])(route)

    app = new_app()
    app.state = State(serving.handlers)
    add("/v1/chat/completions", create_chat_completion, ChatRequest)
    if completions:
        add("/v1/completions", create_completion, TextRequest)
    add("/tokenize", tokenize, TokenizeRequest | TokenizeCompletionRequest)
    add("/detokenize", detokenize, DetokenizeRequest)
    app.get("/v1/models")(show_available_models)
    app.get(HEALTH)(serving.health)
    return app


def routes_of(app: FastAPI, guarded: ASGIApp) -> list[Route]:
    """Returns the routes of an application, behind its access control, for another one; it answers its errors itself."""
    return [Route(route.path, guarded, methods=list(route.methods or ())) for route in app.routes if isinstance(route, Route)]


async def _answer(_: Request, error: Exception) -> Response:
    return refused(_explained(error))


def _explained(error: Exception) -> RequestError:
    """Returns the error that the client of a request that failed gets."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, QuirksError):
        return RequestError(str(error), status=next((status for kind, status in _STATUSES if isinstance(error, kind)), 503))
    if isinstance(error, HTTPException):
        return RequestError(str(error.detail), status=error.status_code)
    if isinstance(error, RequestValidationError):
        problems = {}
        for item in error.errors():
            if isinstance(item, dict) and item["type"] != "json_invalid":  # a text for another content type
                path = [str(part) for part in item["loc"][1:] if "[" not in str(part)]  # without the names of validators
                problems[".".join(path) or "body"] = item["msg"]
        shown = "; ".join(f"{field}: {text}" for field, text in problems.items()) or error.errors()[0]
        fields = {field.partition(".")[0] for field in problems}
        return RequestError(f"the request is not valid: {shown}", parameter=fields.pop() if len(fields) == 1 else None)
    given = _error_response(error).error
    if given.code >= 500:
        _LOG.error("a request failed: %s", words(error), exc_info=error)
    return RequestError(given.message, status=given.code, parameter=given.param)
