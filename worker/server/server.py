"""Starts and stops the OpenAI-compatible server in the event loop of its engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from worker.server.errors import ServerStartError
from worker.server.profile import SamplingProfile

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from quirks_core.config import GenerationConfig, ServerSection
    from worker.server.streams import Running

_LOG = logging.getLogger(__name__)

#: Connections that may wait to be accepted.
_BACKLOG = 2048
#: Seconds, beyond those that running requests get, after which a server that does not stop is cancelled.
_STOP_S = 5.0
_EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104  # compared with, not listened on
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OpenAIServer:
    """An OpenAI-compatible server for one engine.

    It shares the engine's event loop: vLLM's sockets belong to one. It has chat completions, tokenize, detokenize, models and
    health, and nothing else.

    Args:
        engine: vLLM's ``AsyncLLM``.
        config: The configuration; its ``server`` section is ours.
        check: Raises a `QuirksError` when the engine must not generate; the client gets its message with status 503.

    Attributes:
        warnings: What the user should know.
    """

    def __init__(self, engine: Any, config: GenerationConfig, *, check: Callable[[], None]) -> None:
        self._engine = engine
        self._config = config
        self._check = check
        self._key = bearer_key(config.server)
        self._socket: socket.socket | None = None
        self._base_url: str | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None
        self._requests: Running | None = None
        self.warnings: list[str] = []

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``, reachable from other nodes if the server listens on every interface.

        Raises:
            ServerStartError: No port is reserved yet.
        """
        if self._base_url is None:
            raise ServerStartError("the server has no address before it is started")
        return self._base_url

    @property
    def api_key(self) -> str | None:
        """The bearer key; None if ``server.auth`` is false."""
        return None if self._key is None else self._key.get_secret_value()

    def reserve(self) -> str:
        """Takes the port, so that nobody else can; clients may connect from now on and wait. Returns the base URL.

        Raises:
            ServerStartError: The address cannot be listened on.
        """
        if self._socket is None:
            section, host = self._config.server, self._host
            self._socket = _listen(host, section.ports())
            name = section.advertised_host or (_own_address() if host in _EVERY_INTERFACE else host)
            port = self._socket.getsockname()[1]
            self._base_url = f"http://{f'[{name}]' if ':' in name else name}:{port}/v1"
        return self.base_url

    def add_routes(self, app: FastAPI) -> None:
        """Adds the routes to an app; who serves it guards it, as `start` does with the key.

        Raises:
            ServerStartError: The installed vLLM refuses the configuration.
        """
        from worker.server.app import Routes  # imports vLLM, which reads its environment meanwhile
        from worker.server.serving import Serving

        section = self._config.server
        rollout = self._config.purpose == "rollout"
        longest = self._engine.model_config.max_model_len
        serving = Serving(
            self._engine,
            section,
            name=section.served_model_name or self._config.model.path,
            path=self._config.model.path,
            profile=SamplingProfile(self._config.sampling, fixed=rollout, longest=longest),
            carry=rollout,
        )
        routes = Routes(serving, self._check, max_body=int(section.max_body_mb * 1e6))
        routes.add_to(app)
        self._requests = routes.running

    async def start(self) -> None:
        """Serves as a task of the running event loop, the engine's; returns when connections are answered.

        Raises:
            ServerStartError: The address cannot be listened on, or vLLM refuses the configuration.
        """
        if self._running is not None:
            raise ServerStartError("the server is running already; call start once")
        import uvicorn
        from fastapi import FastAPI

        try:
            app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
            self.add_routes(app)
            self._guard(app)
            self.reserve()
            section = self._config.server
            self._uvicorn = _quiet(uvicorn.Server)(
                uvicorn.Config(
                    app,
                    lifespan="off",
                    ws="none",
                    log_config=None,  # the host's logging is not ours to set up
                    access_log=False,
                    server_header=False,
                    backlog=_BACKLOG,
                    timeout_keep_alive=section.keep_alive_s,
                    timeout_graceful_shutdown=section.shutdown_s,
                )
            )
            self._running = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]), name="openai-server")  # type: ignore[list-item]
            while not self._uvicorn.started:
                if self._running.done():
                    raise ServerStartError(f"the server ended while it started: {self._running.exception()!r}")
                await asyncio.sleep(0.005)
        except BaseException:
            await self.stop()
            raise
        self._warn()

    def abort(self, reason: str) -> None:
        """Ends every request that is being answered, in the engine too; its client gets the reason with status 503."""
        if self._requests is not None:
            self._requests.abort(reason)

    async def stop(self) -> None:
        """Takes no new connection, gives running requests ``server.shutdown_s``, then aborts them; may be called again."""
        running, self._running = self._running, None
        server, self._uvicorn = self._uvicorn, None
        if server is not None and running is not None:
            server.should_exit = True
            await asyncio.wait((running,), timeout=self._config.server.shutdown_s + _STOP_S)
            running.cancel()
            await asyncio.gather(running, *server.server_state.tasks, return_exceptions=True)
            for connection in list(server.server_state.connections):
                connection.transport.abort()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._base_url = None

    def _guard(self, app: FastAPI) -> None:
        from worker.server.app import RequireKey

        if self._key is not None:
            app.add_middleware(RequireKey, key=self._key)

    @property
    def _host(self) -> str:
        everywhere = self._config.cluster.num_nodes > 1
        return self._config.server.host or ("0.0.0.0" if everywhere else "127.0.0.1")  # noqa: S104

    def _warn(self) -> None:
        if self._key is None:
            who = "every user of this machine" if self._host in _LOOPBACK else "everybody who reaches it"
            text = f"the server at {self.base_url} asks for no key (server.auth is false): {who} can use the engine"
            self.warnings.append(text)
            _LOG.warning(text)


def bearer_key(section: ServerSection) -> SecretStr | None:
    """Returns the configured key, else the environment's, else a new one; None for a server that asks for none."""
    if not section.auth:
        return None
    return section.api_key or SecretStr(os.environ.get("VLLM_API_KEY") or secrets.token_urlsafe(32))


def _listen(host: str, ports: range) -> socket.socket:
    """Returns a socket that listens on the first free one of these ports, tried in random order.

    Raises:
        ServerStartError: There is none, or the host is no address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ServerStartError(f"server.host = {host!r} cannot be resolved: {error.strerror or error}") from None
    reason: OSError | None = None
    for port in random.sample(ports, len(ports)):  # replicas on one machine would all try the first one first
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((address[0], port, *address[2:]))
            found.listen(_BACKLOG)
        except OSError as error:
            found.close()
            reason = error
            continue
        found.setblocking(False)
        return found
    tried = f"port {ports[0]}" if len(ports) == 1 else f"none of the ports {ports[0]} to {ports[-1]}"
    told = reason.strerror if reason is not None and reason.strerror else str(reason)
    raise ServerStartError(f"the server cannot listen on {host}, {tried}: {told}; change server.host or server.port")


def _own_address() -> str:
    """Finds the address by which other nodes reach this one."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.util.get_node_ip_address())
    if stated := os.environ.get("VLLM_HOST_IP"):
        return stated
    # Connecting a datagram socket sends nothing; it only asks the routing table.
    for family, beyond in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((beyond, 9))
            return str(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


def _quiet(kind: type[uvicorn.Server]) -> type[uvicorn.Server]:
    """Returns uvicorn's server without its signal handlers: Ctrl-C belongs to the trainer."""

    class Embedded(kind):  # type: ignore[misc, valid-type]
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Embedded
