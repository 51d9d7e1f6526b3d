"""The routes: access control, request bodies, and replies.

Import it after the plan is in force, because it imports vLLM. Only these routes exist: vLLM's development routes, which
call into the engine, are added by ``server.rl_routes`` alone (`worker.server.rl_routes`), whatever VLLM_SERVER_DEV_MODE is.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from quirks_core.base.errors import words
from worker.server.errors import RequestError
from worker.server.serving import Serving
from worker.server.streams import Running, begun

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_Handler = Callable[[dict[str, Any], Request], Coroutine[Any, Any, Any]]
#: Served without a key, for load balancers.
_OPEN = "/health"


class Routes:
    """The handlers of the routes.

    Args:
        serving: vLLM's serving classes.
        check: Raises a `QuirksError` when the engine must not generate.
        max_body: Largest request, in bytes.

    Attributes:
        running: The requests that are being answered.
    """

    def __init__(self, serving: Serving, check: Callable[[], None], *, max_body: int) -> None:
        self._serving = serving
        self._check = check
        self._max_body = max_body
        self.running = Running()

    def add_to(self, app: FastAPI, *, completions: bool = False) -> None:
        """Adds the routes.

        Args:
            app: The application.
            completions: Add ``/v1/completions`` too, from which trainers sample by token ids.
        """
        generating = {"/v1/chat/completions": self._serving.chat}
        if completions:
            generating["/v1/completions"] = self._serving.complete
        others = {"/tokenize": self._serving.tokenize, "/detokenize": self._serving.detokenize}
        for path, handler in (generating | others).items():
            check = self._check if path in generating else None
            app.add_api_route(path, self._answer(handler, check), methods=["POST"], response_model=None)
        app.add_api_route("/v1/models", self.models, methods=["GET"], response_model=None)
        app.add_api_route(_OPEN, self.health, methods=["GET"], response_model=None)
        app.add_exception_handler(HTTPException, http_error)

    async def models(self) -> Response:
        """``GET /v1/models``."""
        return await self._replied(self._serving.models())

    async def health(self) -> Response:
        """``GET /health``: 200 if the engine can generate, else 503; needs no key, so it gives no reason."""
        try:
            self._check()
            healthy = not self._serving.errored
        except Exception:  # whatever it is
            healthy = False
        return Response(status_code=200 if healthy else 503)

    def _answer(self, handler: _Handler, check: Callable[[], None] | None) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            async def reply(body: dict[str, Any]) -> Any:
                if check is not None:
                    check()
                found = await handler(body, request)
                return await begun(found, self.running, self._serving.error) if isinstance(found, AsyncGenerator) else found

            async def finished() -> Any:
                body = await _read(request, self._max_body)
                return await self.running.finish(reply(body), request.receive)

            return await self._replied(finished())

        return answer

    async def _replied(self, work: Coroutine[Any, Any, Any]) -> Response:
        """Runs a handler; every error becomes an error body of OpenAI's form."""
        try:
            reply = await work
        except ClientDisconnect:
            return Response(status_code=499)  # nginx's; no client receives it
        except Exception as error:
            return refused(self._serving.error(error))
        return reply if isinstance(reply, Response) else response(reply)


class RequireKey:
    """Requires a key, except for the health check, and one length: with two, a proxy may see another end of the request.

    It is a bearer key, or the password of a URL (``http://:KEY@host:port``): trainers have no setting for a header.

    Args:
        app: The protected application.
        *keys: The keys; each of them will do. Without any, none is required.
    """

    def __init__(self, app: ASGIApp, *keys: SecretStr) -> None:
        self._app = app
        self._keys = [key.get_secret_value().encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope.get("headers", ())}:
            error = RequestError("the request has both Content-Length and Transfer-Encoding: send one of them")
            await refused(error, {"Connection": "close"})(scope, receive, send)
        elif scope["type"] == "http" and self._keys and scope["path"] != _OPEN and not self._knows(scope):
            error = RequestError("the request has no valid key: send it as 'Authorization: Bearer KEY'", status=401)
            await refused(error, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        key = key.strip()
        if scheme.lower() == b"basic":
            with suppress(ValueError):
                key = base64.b64decode(key).partition(b":")[2]
        elif scheme.lower() != b"bearer":
            return False
        return sum(secrets.compare_digest(key, known) for known in self._keys) > 0  # all are compared: it takes the same time


async def _read(request: Request, max_body: int) -> dict[str, Any]:
    """Reads a request's JSON object.

    Raises:
        RequestError: There is none, or it is too large.
        ClientDisconnect: The client left before it had sent the request.
    """
    # Also keeps web pages out: a browser sends this type to another origin only after a preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError("the request must have the header 'Content-Type: application/json'", status=415)
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > max_body:
            raise RequestError(f"the request is larger than server.max_body_mb = {max_body / 1e6:g}", status=413)
        parts.append(part)
    raw = b"".join(parts)
    return _parsed(raw) if length <= 16_384 else await asyncio.to_thread(_parsed, raw)  # a thread takes longer for less


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
        msgspec.msgpack.encode(body)  # what vLLM's messages cannot hold it would find after it registered the request
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is not valid JSON: {words(error)}") from None
    except OverflowError:
        raise RequestError("the request has an integer of more than 64 bits") from None
    if not isinstance(body, dict):
        raise RequestError(f"the request must be a JSON object, not {type(body).__name__}")
    return body


def response(reply: Any) -> Response:
    """Turns what vLLM returns, a reply, a text or an error, into HTTP."""
    if isinstance(reply, str):
        return Response(reply)
    if (error := getattr(reply, "error", None)) is not None:
        return refused(RequestError(error.message, status=error.code, parameter=error.param))
    return Response(reply.model_dump_json(), media_type="application/json")


def refused(error: RequestError, headers: dict[str, str] | None = None) -> Response:
    """Returns an error as a response."""
    return JSONResponse(error.body(), error.status, headers)


async def http_error(_: Request, error: Any) -> Response:
    """An unknown path or method, or what a route of vLLM's raises."""
    return refused(RequestError(str(error.detail), status=error.status_code))
