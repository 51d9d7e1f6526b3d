"""vLLM's routes as an application of ours, in which every error has OpenAI's form; those for trainers have a key of their own.

Import it after the plan is in force, because it imports vLLM. Only these routes exist: vLLM's own application has others, which
sample otherwise than the rollout (``/v1/responses``, ``/v1/messages``) or call into the engine. Paths, bodies and replies are
vLLM's; keys, turns and errors are ours.
"""

# No postponed annotations: FastAPI reads those of the routes.
import base64
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import SecretStr
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm import exceptions
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.models.api_router import show_available_models
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from vllm.entrypoints.serve.tokenize.api_router import detokenize, tokenize
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeCompletionRequest
from vllm.entrypoints.serve.utils.api_utils import validate_json_request

from quirks_core.base.errors import QuirksError, shortened, words
from worker.errors import RefitError, RefitRejectedError, SleepError, UpdateOrderError
from worker.server.errors import RequestError
from worker.server.results import found
from worker.server.serving import ChatRequest, Serving, TextRequest, TokenizeRequest
from worker.server.trainer_client import TrainerClient

_LOG = logging.getLogger(__name__)
#: Served without a key, for load balancers.
_HEALTH = "/health"
_ERRORS = "vllm.entrypoints.serve.exception_handling.error_response", "vllm.entrypoints.serve.utils.error_response"
_error_response = found("create_error_response", *_ERRORS)
#: Starlette answers what only ``Exception`` catches too, but logs its traceback: a bug. vLLM's base exists from 0.27 on.
_VLLM = getattr(exceptions, "VLLMError", exceptions.VLLMValidationError)
_OTHERS = (_VLLM, ValueError, TypeError, OverflowError, NotImplementedError)
#: HTTP status of the worker's errors; all others have 503.
_STATUSES = ((UpdateOrderError, 409), (RefitRejectedError, 400), (RefitError, 500), (SleepError, 400))
_DEV = "vllm.entrypoints.serve.dev"
#: vLLM's routes for trainers, the newest place first. ``/collective_rpc`` is left out: it calls whatever it is given.
_ROUTERS = (
    ("vllm.entrypoints.rl.online.api_router", f"{_DEV}.rlhf.api_router"),
    (f"{_DEV}.cache.api_router",),
    (f"{_DEV}.sleep.api_router",),
    (f"{_DEV}.server_info.api_router",),
)
#: What may be called while a weight update is open, besides what only reads.
_DURING = ("/update_weights", "/finish_weight_update", "/abort_requests", "/reset_prefix_cache")


def server_app(serving: Serving, client: TrainerClient, trainer_key: SecretStr | None) -> FastAPI:
    """Returns the application of all routes.

    Args:
        serving: vLLM's handlers.
        client: The engine, for trainers.
        trainer_key: The key of the routes for trainers; None leaves them out, and ``/v1/completions``, from which trainers
            sample by token ids.
    """

    def add(path: str, call: Callable[..., Coroutine[Any, Any, Any]], form: Any) -> None:
        async def route(request: form, raw_request: Request) -> Any:
            await serving.prepare(request)
            return await call(request, raw_request)

        # A browser sends JSON to another origin only after a preflight request, so this keeps web pages out.
        app.post(path, response_model=None, dependencies=[Depends(validate_json_request)])(route)

    app = _new_app()
    app.state = State(serving.handlers)
    add("/v1/chat/completions", create_chat_completion, ChatRequest)
    add("/tokenize", tokenize, TokenizeRequest | TokenizeCompletionRequest)
    add("/detokenize", detokenize, DetokenizeRequest)
    app.get("/v1/models")(show_available_models)
    app.get(_HEALTH)(serving.health)
    if trainer_key is not None:
        add("/v1/completions", create_completion, TextRequest)
        routes = _trainer_app(serving, client)
        app.router.routes += routes_of(routes, RequireKey(routes, trainer_key))
    return app


def routes_of(app: FastAPI, guarded: ASGIApp) -> list[Route]:
    """Returns the routes of an application, behind its access control, for another one; it answers its errors itself."""
    return [Route(route.path, guarded, methods=list(route.methods or ())) for route in app.routes if isinstance(route, Route)]


def _new_app() -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for kind in (HTTPException, RequestValidationError, QuirksError, *_OTHERS, Exception):
        app.add_exception_handler(kind, _answer)
    return app


# ---- routes for trainers


def _trainer_app(serving: Serving, client: TrainerClient) -> FastAPI:
    app = _new_app()
    app.state.engine_client, app.state.vllm_config = client, client.vllm_config
    adapters = _adapters(serving.handlers["openai_serving_models"], client)
    for router in (*(found("router", *places) for places in _ROUTERS), adapters):
        app.include_router(router, dependencies=[Depends(_in_order)])
    app.middleware("http")(_keep_by_default)
    return app


async def _in_order(request: Request) -> None:
    if request.method == "POST" and request.url.path not in _DURING:
        request.app.state.engine_client.check_closed()


def _adapters(models: Any, client: TrainerClient) -> APIRouter:
    """Returns the routes for LoRA; vLLM's own router of them needs a variable, and a package of another vendor."""
    router = APIRouter()

    def add(name: str, form: Any) -> None:
        async def change(request: form) -> Response:
            reply = await client.in_turn(getattr(models, name), request)
            error = getattr(reply, "error", None)
            return Response(reply) if error is None else JSONResponse(reply.model_dump(), error.code)

        router.post(f"/v1/{name}")(change)

    add("load_lora_adapter", LoadLoRAAdapterRequest)
    add("unload_lora_adapter", UnloadLoRAAdapterRequest)
    return router


async def _keep_by_default(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Has ``/pause`` without a mode keep what is in flight, where vLLM ends it; the reply reports what was done."""
    if request.url.path != "/pause" or "mode" in request.query_params:
        return await call_next(request)
    request.scope["query_string"] += b"&mode=keep"
    reply = await call_next(request)
    reply.headers["model-quirks-pause"] = "keep (the default here; vLLM's is abort, by ?mode=abort)"
    return reply


# ---- keys and errors


class RequireKey:
    """Requires one of some keys, except for the health check; vLLM's own middleware leaves ``/tokenize`` open.

    It is a bearer key, or the password of a URL (``http://:KEY@host:port``): trainers have no setting for a header.
    """

    def __init__(self, app: ASGIApp, *keys: SecretStr) -> None:
        """Protects an application by keys; each of them will do."""
        self._app = app
        self._keys = [key.get_secret_value().encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["path"] == _HEALTH or self._knows(scope):
            await self._app(scope, receive, send)
        else:
            error = RequestError("the request has no valid key: send it as 'Authorization: Bearer KEY'", status=401)
            reply = await _answer(Request(scope), error)
            reply.headers["WWW-Authenticate"] = "Bearer"
            await reply(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"basic":
            with suppress(ValueError):
                key = base64.b64decode(key).partition(b":")[2]
        elif scheme.lower() != b"bearer":
            return False
        return any(secrets.compare_digest(key, known) for known in self._keys)


async def _answer(_: Request, error: Exception) -> Response:
    """Returns an error as a response in OpenAI's form, with the types that vLLM gives HTTP's errors."""
    reason = _explained(error)
    kind, message = HTTPStatus(reason.status).phrase, shortened(str(reason), most=2000)
    body = {"message": message, "type": kind, "param": reason.parameter, "code": reason.status}
    return JSONResponse({"error": body}, reason.status)


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
