"""The routes as an application of its own, in which every error has OpenAI's form.

Import it after the plan is in force, because it imports vLLM. Only these routes exist: vLLM's own application has others, which
sample otherwise than the rollout (``/v1/responses``, ``/v1/messages``) or call into the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from vllm import exceptions
from vllm.entrypoints.serve.utils.api_utils import validate_json_request, with_cancellation

from quirks_core.base.errors import QuirksError
from worker.server.access import HEALTH, refused
from worker.server.errors import RequestError
from worker.server.serving import Serving

if TYPE_CHECKING:
    from starlette.types import ASGIApp

#: Starlette answers what only the last one catches too, but logs its traceback: a bug.
_ERRORS = (
    HTTPException,
    RequestValidationError,
    QuirksError,
    ValueError,
    TypeError,
    OverflowError,
    NotImplementedError,
    getattr(exceptions, "VLLMError", exceptions.VLLMValidationError),  # the base exists from 0.27 on
    Exception,
)


def new_app(explain: Callable[[Exception], RequestError]) -> FastAPI:
    """Returns an application without routes.

    Args:
        explain: Makes the error for the client of what goes wrong.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    async def answer(_: Request, error: Exception) -> Response:
        return refused(explain(error))

    for kind in _ERRORS:
        app.add_exception_handler(kind, answer)
    return app


def openai_app(serving: Serving, *, completions: bool) -> FastAPI:
    """Returns the application of the routes that need no trainer.

    Args:
        serving: What answers.
        completions: Add ``/v1/completions``, from which trainers sample by token ids.
    """
    app = new_app(serving.error)
    handlers = {"/v1/chat/completions": serving.chat, "/tokenize": serving.tokenize, "/detokenize": serving.detokenize}
    if completions:
        handlers["/v1/completions"] = serving.complete
    for path, handler in handlers.items():
        # A browser sends JSON to another origin only after a preflight request, so this keeps web pages out.
        app.add_api_route(
            path,
            with_cancellation(handler),
            methods=["POST"],
            response_model=None,
            dependencies=[Depends(validate_json_request)],
        )
    app.add_api_route("/v1/models", serving.models, methods=["GET"], response_model=None)
    app.add_api_route(HEALTH, serving.health, methods=["GET"], response_model=None)
    return app


def add_routes_of(source: FastAPI, target: FastAPI, guarded: ASGIApp) -> None:
    """Adds the routes of an application to another one.

    Args:
        source: The application; its own handlers answer the errors of its routes.
        target: The other one.
        guarded: The application behind its access control.
    """
    for route in source.routes:
        if isinstance(route, Route):
            target.router.routes.append(Route(route.path, guarded, methods=sorted(route.methods or ())))
