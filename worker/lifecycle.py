"""One engine of a trainer's worker from plan to shutdown: started, proven, served over HTTP, stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import QuirksError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan
from quirks_core.plan.summary import messages
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker.engine.engine import Engine
from worker.engine.engine_rank import EngineRank
from worker.engine.topology import Expected, Topology, read_topology
from worker.generation import Requests
from worker.launch import parsed, prepare, sampling_warnings
from worker.refit.open_update import UpdateSteps
from worker.refit.refitting import Refitting

if TYPE_CHECKING:
    from fastapi import FastAPI

    from worker.server import Listener, OpenAIServer


@dataclass(slots=True)
class _Running:
    """The parts that exist while an engine runs."""

    engine: Engine
    requests: Requests
    refitting: Refitting
    update_steps: UpdateSteps
    server: OpenAIServer | None = None


class WorkerLifecycle:
    """Holds the plan, and the engine while it runs."""

    def __init__(
        self,
        config: GenerationConfig | Mapping[str, Any],
        bundle_indices: Sequence[int] | None = None,
        fraction_of_gpus: float = 1.0,
        seed: int | None = None,
        extra_env_vars: Sequence[str] | None = None,
        *,
        disable: Sequence[str] = (),
        force: Sequence[str] = (),
        engine_rank: EngineRank | None = None,
        options: PlanOptions | None = None,
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            bundle_indices: Bundles of the current Ray placement group that belong to this worker.
            fraction_of_gpus: Share of a GPU that each engine process takes, in (0, 1].
            seed: Seed of the engine. Independent replicas need different seeds, or they generate the same samples from the same
                prompts. If None: the configuration's, else one derived from the bundles, else the engine's.
            extra_env_vars: Names of variables that the engine's processes in Ray actors get from this one.
            disable: Names to turn off: quirks, flags, ``distribution:NAME``, ``third-party``, ``all``. Stronger than
                environment and configuration.
            force: Names to turn on, whatever their match and version ranges are.
            engine_rank: Which engine of a `worker.WorkerGroup` this is; the group gives it.
            options: Plan options, instead of ``disable`` and ``force``.

        Raises:
            UsageError: Something in the configuration is wrong.
            RefusedError: The configuration cannot work; the error lists all reasons.
            LockError: The loaded quirks are not those of the lock file.
            BrokenPluginsError: There are broken plugins, and MODEL_QUIRKS_STRICT=1 applies.
        """
        config = parsed(config)
        launch = prepare(
            config,
            options or PlanOptions.gather(config, call=SwitchNames(disable, force)),
            bundle_indices=bundle_indices,
            fraction_of_gpus=fraction_of_gpus,
            seed=seed,
            extra_env_vars=extra_env_vars or (),
            engine_rank=engine_rank,
        )
        self.config: GenerationConfig = launch.config
        self.plan: Plan = launch.plan
        self.warnings: list[str] = [*messages(launch.plan), *sampling_warnings(launch.config)]
        self._launch = launch
        self._engine_rank = engine_rank
        self._running: _Running | None = None
        self._listener: Listener | None = None
        self._receipt: Receipt | None = None
        self.topology = Topology(())

    # ---- start and stop

    @property
    def receipt(self) -> Receipt:
        """What every process of the engine acknowledged; available after `post_init_async`, also after `shutdown`.

        Raises:
            QuirksError: The engine has not been started.
        """
        if self._receipt is None:
            raise QuirksError("there is no receipt before the engine runs; call post_init_async first")
        return self._receipt

    @property
    def engine(self) -> Engine:
        """The running engine, for access that the worker's methods do not offer; ``engine.llm`` is vLLM's ``AsyncLLM``.

        Raises:
            QuirksError: The engine does not run.
        """
        return self._parts.engine

    @property
    def requests(self) -> Requests:
        """The requests to the running engine; error as for `engine`."""
        return self._parts.requests

    @property
    def refitting(self) -> Refitting:
        """The refits of the running engine; error as for `engine`."""
        return self._parts.refitting

    @property
    def update_steps(self) -> UpdateSteps:
        """Its weight updates by calls of a trainer elsewhere; error as for `engine`."""
        return self._parts.update_steps

    async def post_init_async(self) -> None:
        """Starts the engine and, if ``server.enabled``, the OpenAI-compatible server.

        An engine that starts from dummy weights (``engine.load_format``) does not generate before a complete refit, unless
        ``engine.generate_from_dummy`` is set.

        Blocks the event loop until the engine runs: 20 to 60 s on two CPU cores.

        Raises:
            EngineStartError: The engine died; its last error lines are in the message, the active quirks in the notes.
            ReceiptError: A process does not carry out the plan, or the engine changed a value that a quirk set.
            TopologyError: The engine formed other parallel groups than planned.
            ServerStartError: The server cannot listen. If the port is in use, this is raised before the engine starts.
        """
        if self._running is not None:
            raise QuirksError("the engine is running already; call post_init_async once")
        if self.config.server.enabled:
            from worker.server import Listener

            self._listener = Listener(self.config)  # fails here if the port is in use, not after the engine's start
        try:
            await self._create_engine(self._launch.arguments)
            if self.config.server.enabled:
                await self._setup_vllm_server()
        except BaseException:
            await self.shutdown()
            raise

    async def _create_engine(self, llm_kwargs: Mapping[str, Any]) -> None:
        """Starts an engine with these arguments of vLLM's ``AsyncEngineArgs``."""
        engine = Engine(self.plan, llm_kwargs, self._launch.environment)
        await engine.start()
        try:
            place = self._engine_rank
            self.topology = Topology.of(await engine.call(read_topology), engine=0 if place is None else place.rank)
            if place is None:  # else the group compares all of its engines
                self.topology.check(Expected.of(self.plan))
        except BaseException:
            await engine.stop()
            raise
        self._receipt = engine.receipt
        devices = [row.device for row in self.topology.rows]
        refitting = Refitting(engine, self.config.refit, self.plan, devices, self._abort, self._warn)
        self._running = _Running(
            engine,
            Requests(
                engine,
                self.config.sampling,
                self.config.request.timeout_s,
                returns_experts=bool(self._launch.arguments.get("enable_return_routed_experts")),
            ),
            refitting,
            UpdateSteps(refitting, engine, self._warn),
        )
        self._warn(*engine.warnings, *self._launch.registry.observe(self.plan, self.receipt))

    async def shutdown(self) -> bool:
        """Stops server and engine, ends every process that was started and reverts the plan; may be called again.

        Requests in flight end with `GenerationAbortedError`.
        """
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        running, self._running = self._running, None
        if running is None:
            return True
        try:
            await running.requests.close("the worker was shut down")
            if running.server is not None:
                await running.server.stop()
        finally:
            running.refitting.give_up()
            await running.engine.stop()
            await running.refitting.close()
        return True

    async def restart_async(self) -> None:
        """Replaces an engine that died, or whose weights mix two versions, by a new one.

        As after `post_init_async`, an engine from dummy weights does not generate before a refit. Announcements of refits stay
        valid. A collective must be joined again; the server gets a new port, and a new key unless one is configured.

        Raises:
            EngineStartError: As for `post_init_async`.
        """
        announced = self._running.refitting.announced if self._running is not None else None
        await self.shutdown()
        await self.post_init_async()
        self.refitting.announced = announced

    # ---- OpenAI-compatible server

    async def report_dp_openai_server_base_url(self) -> str | None:
        """Returns ``http://host:port/v1``, None if there is no server (``server.enabled``)."""
        server = self._server
        return None if server is None else server.base_url

    @property
    def openai_api_key(self) -> str | None:
        """The bearer key that the server requires; None if there is no server."""
        server = self._server
        return None if server is None else server.api_key.get_secret_value()

    @property
    def rl_api_key(self) -> str | None:
        """The key of the server's routes for trainers (``server.rl_routes``); None if there are none."""
        key = None if self._server is None else self._server.rl_api_key
        return None if key is None else key.get_secret_value()

    def _setup_vllm_openai_api_server(self, app: FastAPI) -> FastAPI:
        """Adds the server's routes to the caller's application; the caller is responsible for access control and serving."""
        self._openai_server().add_routes(app)
        return app

    async def _setup_vllm_server(self) -> str:
        """Starts the server in this event loop; returns its base URL."""
        self._parts.server = server = self._openai_server(self._listener)
        self._listener = None
        await server.start()
        return server.base_url

    def _openai_server(self, listener: Listener | None = None) -> OpenAIServer:
        from worker.server import OpenAIServer
        from worker.server.trainer_client import TrainerClient

        return OpenAIServer(self.engine, self.config, TrainerClient(self), listener)

    # ---- parts

    def _warn(self, *texts: str) -> None:
        self.warnings += [text for text in texts if text not in self.warnings]

    def _abort(self, why: str) -> None:
        """Aborts every request of this process; those of HTTP clients end with the engine's."""
        if self._running is not None:
            self._running.requests.abort(why)

    @property
    def _server(self) -> OpenAIServer | None:
        return None if self._running is None else self._running.server

    @property
    def _parts(self) -> _Running:
        if self._running is None:
            raise QuirksError("the engine is not running; call post_init_async first")
        return self._running
