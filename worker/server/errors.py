"""What can go wrong with the server, or with one request to it."""

from __future__ import annotations

from quirks_core.base.errors import QuirksError


class ServerStartError(QuirksError):
    """The server cannot listen, or the serving classes of the installed vLLM refuse its configuration."""


class RequestError(QuirksError):
    """A request cannot be served; the client gets the message in an OpenAI-style error body.

    Attributes:
        status: HTTP status, 4xx unless the engine is the cause.
        parameter: The field of the request that is wrong; None if it is the request as a whole.
    """

    def __init__(self, message: str, *, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.status = status


class PrefixTokensError(RequestError):
    """The ids that a model produced cannot be joined with what the chat template renders."""

    def __init__(self, message: str) -> None:
        super().__init__(message, parameter="required_prefix_token_ids")
