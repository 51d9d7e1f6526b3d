"""Who may use a route, and how an error becomes a reply."""

from __future__ import annotations

import base64
import secrets
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from pydantic import SecretStr
from starlette.responses import JSONResponse, Response

from quirks_core.base.errors import shortened
from worker.server.errors import RequestError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Served without a key, for load balancers.
HEALTH = "/health"


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
        if scope["path"] == HEALTH or self._knows(scope):
            await self._app(scope, receive, send)
        else:
            error = RequestError("the request has no valid key: send it as 'Authorization: Bearer KEY'", status=401)
            await refused(error, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"basic":
            with suppress(ValueError):
                key = base64.b64decode(key).partition(b":")[2]
        elif scheme.lower() != b"bearer":
            return False
        return any(secrets.compare_digest(key, known) for known in self._keys)


def refused(error: RequestError, headers: dict[str, str] | None = None) -> Response:
    """Returns an error as a response in OpenAI's form, with the types that vLLM gives HTTP's errors."""
    kind, message = HTTPStatus(error.status).phrase, shortened(str(error), most=2000)
    body = {"message": message, "type": kind, "param": error.parameter, "code": error.status}
    return JSONResponse({"error": body}, error.status, headers)
