"""Starts and stops the OpenAI-compatible server in the event loop of its engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from worker.server.errors import ServerStartError
from worker.server.listening import Listener

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from quirks_core.configuration.config import GenerationConfig
    from quirks_core.configuration.sections import ServerSection
    from worker.engine.engine import Engine
    from worker.server.trainer_client import TrainerClient

#: vLLM reads an empty list of media hosts as all hosts. No host has this name, and vLLM's error message quotes it.
_NO_HOST = "none, because engine.allowed_media_domains is empty"
#: Seconds that running requests get when the server stops.
_SHUTDOWN_S = 5


class OpenAIServer:
    """An OpenAI-compatible server for one engine.

    It shares the engine's event loop: vLLM's sockets belong to one. It has chat completions, tokenize, detokenize, models and
    health, with ``server.rl_routes`` also completions and vLLM's routes for trainers, and nothing else.

    Args:
        engine: The engine; what it must not do now, or its death, is status 503 with that message.
        config: The configuration; its ``server`` section is ours.
        trainer: The engine for vLLM's routes for trainers, if ``server.rl_routes`` is set.
        listener: The address, if it is reserved already; the server closes it.

    Attributes:
        api_key: The bearer key.
        rl_api_key: The key of the routes for trainers; None if there are none. It opens all other routes, too.
        base_url: ``http://host:port/v1``, reachable from other nodes if the server listens on every interface; empty before the
            start.
    """

    def __init__(
        self, engine: Engine, config: GenerationConfig, trainer: TrainerClient, listener: Listener | None = None
    ) -> None:
        self._engine = engine
        self._config = config
        self._trainer = trainer
        self.api_key = bearer_key(config.server)
        self.rl_api_key = (config.server.rl_api_key or _new_key()) if config.server.rl_routes else None
        self._listener = listener
        self._uvicorn: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None
        self.base_url = ""

    def _app(self) -> FastAPI:
        from worker.server.app import server_app
        from worker.server.serving import Serving

        allow_media(self._engine.llm.model_config)
        return server_app(Serving(self._engine, self._config), self._trainer, self.rl_api_key)

    async def start(self) -> None:
        """Serves in a task of the running event loop, the engine's; returns when connections are accepted.

        Raises:
            ServerStartError: The address cannot be listened on, or vLLM refuses the configuration.
        """
        import uvicorn

        from worker.server.app import RequireKey  # imports vLLM, which reads its environment meanwhile

        try:
            app = RequireKey(self._app(), *filter(None, (self.api_key, self.rl_api_key)))
            self._listener = self._listener or Listener(self._config)
            self.base_url = self._listener.base_url
            self._uvicorn = uvicorn.Server(
                uvicorn.Config(
                    app,
                    lifespan="off",
                    ws="none",
                    log_config=None,  # logging is configured by the host application
                    access_log=False,
                    server_header=False,
                    timeout_keep_alive=120,
                    timeout_graceful_shutdown=_SHUTDOWN_S,
                )
            )
            setattr(self._uvicorn, "capture_signals", contextlib.nullcontext)  # noqa: B010 - Ctrl-C belongs to the trainer
            shared = self._listener.socket.dup()  # uvicorn closes it
            self._running = asyncio.create_task(self._uvicorn.serve([shared]), name="openai-server")
            while not self._uvicorn.started:
                if self._running.done():
                    raise ServerStartError(f"the server ended while it started: {self._running.exception()!r}")
                await asyncio.sleep(0.005)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Refuses new connections, gives running requests 5 s, then ends their connections; may be called again."""
        running, self._running = self._running, None
        server, self._uvicorn = self._uvicorn, None
        if server is not None and running is not None:
            server.should_exit = True
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
            for connection in list(server.server_state.connections):
                connection.transport.abort()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def allow_media(model_config: Any) -> None:
    """Makes vLLM's media connector refuse URLs, but of the hosts of ``engine.allowed_media_domains``, and redirects.

    Args:
        model_config: vLLM's ``ModelConfig``, which the connector reads for every request.
    """
    # By default vLLM follows redirects, also from an allowed host to any other.
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    if not model_config.allowed_media_domains:
        model_config.allowed_media_domains = [_NO_HOST]


def bearer_key(section: ServerSection) -> SecretStr:
    """Returns the configured key, else the environment's, else a new one."""
    return section.api_key or (SecretStr(given) if (given := os.environ.get("VLLM_API_KEY")) else _new_key())


def _new_key() -> SecretStr:
    return SecretStr(secrets.token_urlsafe(32))
