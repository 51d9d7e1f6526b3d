"""vLLM's own routes for trainers on our server: theirs are paths, bodies and replies; keys, turns and errors are ours.

Import it after the plan is in force, because it imports vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import SecretStr
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest

from quirks_core.base.errors import QuirksError
from worker.server.app import RequireKey, http_error, refused, response
from worker.server.errors import RequestError
from worker.server.serving import Serving, found
from worker.server.trainer_client import TrainerClient

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DEV = "vllm.entrypoints.serve.dev"
#: Where vLLM has them, the newest place first. Its route ``/collective_rpc`` is left out: it calls whatever it is given.
_ROUTERS = (
    ("vllm.entrypoints.rl.online.api_router", f"{_DEV}.rlhf.api_router"),
    (f"{_DEV}.cache.api_router",),
    (f"{_DEV}.sleep.api_router",),
    (f"{_DEV}.server_info.api_router",),
)
#: What may be called while a weight update is open, besides what only reads.
_DURING = ("/update_weights", "/finish_weight_update", "/abort_requests", "/reset_prefix_cache")


def add_rl_routes(app: FastAPI, serving: Serving, client: TrainerClient, key: SecretStr) -> None:
    """Adds the routes.

    Args:
        app: The server's application; its own middleware comes first.
        serving: vLLM's serving classes.
        client: The engine.
        key: What these routes require.
    """
    routes = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    routes.state.engine_client, routes.state.vllm_config = client, client.vllm_config
    for places in _ROUTERS:
        routes.include_router(found("router", *places), dependencies=[Depends(_in_order)])
    routes.include_router(_adapters(serving, client), dependencies=[Depends(_in_order)])
    routes.add_exception_handler(RequestValidationError, _invalid)
    routes.add_exception_handler(HTTPException, http_error)
    for kind in (QuirksError, ValueError, Exception):  # what only the last one catches also has its traceback logged
        routes.add_exception_handler(kind, lambda _, error: refused(serving.error(error)))
    guarded = RequireKey(_KeepsByDefault(routes), key)
    for route in routes.routes:
        if isinstance(route, Route):
            app.router.routes.append(Route(route.path, guarded, methods=sorted(route.methods or ())))


async def _in_order(request: Request) -> None:
    if request.method == "POST" and request.url.path not in _DURING:
        request.app.state.engine_client.check_closed()


def _adapters(serving: Serving, client: TrainerClient) -> APIRouter:
    """Returns the routes for LoRA; vLLM's own router of them needs a variable, and a package of another vendor."""
    router = APIRouter()

    async def load_lora_adapter(request: LoadLoRAAdapterRequest) -> Response:
        return response(await client.in_turn(serving.adapters.load_lora_adapter, request))

    async def unload_lora_adapter(request: UnloadLoRAAdapterRequest) -> Response:
        return response(await client.in_turn(serving.adapters.unload_lora_adapter, request))

    # The annotations are names of this module: FastAPI resolves them there.
    router.add_api_route("/v1/load_lora_adapter", load_lora_adapter, methods=["POST"], response_model=None)
    router.add_api_route("/v1/unload_lora_adapter", unload_lora_adapter, methods=["POST"], response_model=None)
    return router


async def _invalid(_: Request, error: Any) -> Response:
    """A body or parameter of another form than the installed vLLM's."""
    problems = [(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()]
    return refused(RequestError("; ".join(f"{field}: {text}" for field, text in problems), parameter=problems[0][0]))


class _KeepsByDefault:
    """Has ``/pause`` without a mode keep what is in flight, where vLLM ends it; the reply reports what was done."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if scope["type"] != "http" or scope["path"] != "/pause" or "mode" in query:
            await self._app(scope, receive, send)
            return

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["model-quirks-pause"] = "keep (the default here; vLLM's is abort, by ?mode=abort)"
            await send(message)

        await self._app({**scope, "query_string": scope["query_string"] + b"&mode=keep"}, receive, noting)
