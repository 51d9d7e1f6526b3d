"""The part of the configuration that says how the OpenAI-compatible server listens and who may use it."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from worker.section import Section

#: What an HTTP header can hold without quoting; spaces would end the token.
_KEY = re.compile(r"[\x21-\x7e]+")


class ServerSection(Section):
    """The OpenAI-compatible server of the worker.

    Attributes:
        enabled: Start it with the engine.
        host: Address to listen on. If None the loopback, 127.0.0.1; or every interface, 0.0.0.0, if ``cluster.num_nodes`` is
            above 1, because other nodes must reach it then.
        advertised_host: Name or address in the reported base URL; found out if None.
        port: Port to listen on; 0 for any free one.
        port_range_low: Lowest port to try, instead of ``port``.
        port_range_high: Highest port to try.
        auth: Ask for a bearer key. Without, everybody who reaches the port can use the engine.
        api_key: The key. If None it is the environment's VLLM_API_KEY, and without that a new random one at each start.
        served_model_name: The model's name in requests and replies; the configured ``model.path`` if None.
        chat_template: File of a chat template, or the template itself; the tokenizer's own if None.
        tool_parser: vLLM's parser of tool calls, by its name; None for none.
        reasoning_parser: vLLM's parser of reasoning, by its name; None for none.
        keep_alive_s: Seconds that an idle connection stays open.
        shutdown_s: Seconds that running requests get to finish when the server stops; then they are aborted.
        max_body_mb: Largest request, in 10^6 bytes.
    """

    enabled: bool = False
    host: str | None = Field(default=None, min_length=1)
    advertised_host: str | None = Field(default=None, min_length=1)
    port: int = Field(default=0, ge=0, le=65535)
    port_range_low: int | None = Field(default=None, ge=1, le=65535)
    port_range_high: int | None = Field(default=None, ge=1, le=65535)
    auth: bool = True
    api_key: SecretStr | None = None
    served_model_name: str | None = Field(default=None, min_length=1)
    chat_template: str | None = Field(default=None, min_length=1)
    tool_parser: str | None = Field(default=None, min_length=1)
    reasoning_parser: str | None = Field(default=None, min_length=1)
    keep_alive_s: int = Field(default=120, ge=1)
    shutdown_s: int = Field(default=5, ge=0)
    max_body_mb: float = Field(default=64, gt=0)

    @field_validator("api_key", mode="before")
    @classmethod
    def _key_for_a_header(cls, value: Any) -> Any:
        """Our own words, because pydantic's would quote the key."""
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and (not isinstance(text, str) or not _KEY.fullmatch(text)):
            raise ValueError("must be a text of visible ASCII characters without spaces (quote a number); it is not shown here")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.port_range_low, self.port_range_high
        if (low is None) != (high is None):
            raise ValueError("port_range_low and port_range_high belong together; one of them is missing")
        if low is not None and high is not None:
            if low > high:
                raise ValueError(f"port_range_low = {low} is above port_range_high = {high}")
            if self.port:
                raise ValueError(f"port = {self.port} and a port range exclude each other; give one of them")
        if not self.auth and self.api_key is not None:
            raise ValueError("auth is false but there is an api_key; take one of them away")
        return self

    def ports(self) -> range:
        """Returns the ports to try; port 0 is any free one."""
        if self.port_range_low is None or self.port_range_high is None:
            return range(self.port, self.port + 1)
        return range(self.port_range_low, self.port_range_high + 1)
