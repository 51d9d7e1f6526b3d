"""vLLM's own routes for trainers on our server: theirs are paths, bodies and replies; keys, turns and errors are ours.

Import it after the plan is in force, because it imports vLLM.
"""

# No postponed annotations: FastAPI reads those of the routes.
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.responses import JSONResponse, Response
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest

from worker.server.app import new_app
from worker.server.results import found
from worker.server.serving import Serving
from worker.server.trainer_client import TrainerClient

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


def trainer_app(serving: Serving, client: TrainerClient) -> FastAPI:
    """Returns the application of these routes.

    Args:
        serving: vLLM's handlers.
        client: The engine.
    """
    app = new_app()
    app.state.engine_client, app.state.vllm_config = client, client.vllm_config
    for places in _ROUTERS:
        app.include_router(found("router", *places), dependencies=[Depends(_in_order)])
    app.include_router(_adapters(serving.handlers["openai_serving_models"], client), dependencies=[Depends(_in_order)])
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
