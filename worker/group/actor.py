"""What runs in each Ray actor of a group: one worker, and the methods that report its state to the driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.apply.handed_down import FOLDER_VARIABLE, PLAN_VARIABLE
from quirks_core.base.errors import QuirksError
from quirks_core.configuration.variables import is_secret
from quirks_core.facts.context import planned_variables
from quirks_core.plan.diff import diff
from worker.engine.engine_rank import EngineRank
from worker.refit.transport.channel import free_port

if TYPE_CHECKING:
    from quirks_core.plan.records import Plan
    from worker.async_worker import VllmAsyncGenerationWorker

#: Our variables that pass a plan on to the children of one process.
_OF_ONE_PROCESS = (FOLDER_VARIABLE, PLAN_VARIABLE)
_OWN = "MODEL_QUIRKS_"


class EngineActor:
    """One engine of a group. ``ray.remote`` is applied by the group, never here."""

    _worker: VllmAsyncGenerationWorker

    def __init__(self) -> None:
        self._log = str(Path("/proc/self/fd/2").readlink())  # Ray gives each worker a file, which its children inherit

    async def start(
        self,
        config: Mapping[str, Any],
        engine_rank: EngineRank,
        plan: Plan,
        environment: Mapping[str, str],
        fact_names: Sequence[str],
        disable: Sequence[str],
        force: Sequence[str],
    ) -> dict[str, Any]:
        """Starts the engine; this blocks the actor's event loop.

        The engine resolves a plan of its own with what is installed on its node; it must be the group's. The environment has
        the driver's values of the variables that quirks and their facts read; Ray's processes have those from its start.

        Returns:
            ``receipt``, ``topology``, ``warnings`` and ``longest``, the longest sequence in tokens.

        Raises:
            QuirksError: The configuration is refused here or gives another plan, or the engine did not start.
        """
        from worker.async_worker import VllmAsyncGenerationWorker

        for name in plan_variables(os.environ, fact_names).keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        worker = VllmAsyncGenerationWorker(config, disable=disable, force=force, engine_rank=engine_rank)
        if worker.plan.digest != plan.digest:
            raise QuirksError(
                "this node's plan differs from the driver's, because its installation or its environment differs: "
                f"{_differences(plan, worker.plan)}"
            )
        await worker.post_init_async()
        self._worker = worker
        return {
            "receipt": worker.receipt,
            "topology": worker.topology,
            "warnings": worker.warnings,
            "longest": worker.engine.llm.model_config.max_model_len,
        }

    async def who(self) -> dict[str, Any]:
        """Returns node, process and log of this actor, and a free port for the rendezvous of the ranks."""
        import ray

        node = ray.util.get_node_ip_address()
        return {"node": node, "port": free_port(node), "pid": os.getpid(), "log": self._log}

    async def death(self) -> None:
        """Waits until the engine ends.

        Raises:
            EngineDiedError: It died.
        """
        async with self._worker.engine.watched():
            await asyncio.Event().wait()

    async def state(self) -> dict[str, Any]:
        """Returns whether the engine lives and may generate (``problem``), and its weights; answers while a call waits, too."""
        engine = self._worker.engine
        return {
            "alive": engine.alive,
            "problem": engine.readiness.problem,
            "weights": engine.readiness.held.value,
            "version": engine.readiness.version,
        }

    async def stream(
        self, kind: str, rows: Mapping[int, list[int]], rank: int | None, *arguments: Any, **options: Any
    ) -> AsyncGenerator[tuple[int, Any], None]:
        """Generates from prompts that the group has checked, by a call of `worker.generation.Requests`."""
        async for item in getattr(self._worker.requests, kind)(rows, *arguments, rank=rank, **options):
            yield item

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the worker."""
        return await getattr(self._worker, method)(*arguments)


def plan_variables(environ: Mapping[str, str], fact_names: Iterable[str] = ()) -> dict[str, str]:
    """Returns the variables that affect plans: those that quirks read, and our own switches."""
    ours = {name: value for name, value in environ.items() if name.startswith(_OWN) and name not in _OF_ONE_PROCESS}
    return planned_variables(fact_names, environ) | {name: value for name, value in ours.items() if not is_secret(name)}


def _differences(there: Plan, here: Plan) -> str:
    found = diff(there, here)
    changes = (f"{one.name} is {one.a!r} there and {one.b!r} here" for one in (*found.facts, *found.slots, *found.quirks))
    return "; ".join(changes) or "its installation applies other patches"
