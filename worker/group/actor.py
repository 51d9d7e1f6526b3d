"""What runs in each Ray actor of a group: one worker, and the methods that report its state to the driver."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.apply.handed_down import FOLDER_VARIABLE, PLAN_VARIABLE
from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError
from quirks_core.configuration.variables import is_secret
from quirks_core.facts.context import planned_variables
from quirks_core.plan.diff import diff
from worker.engine import leftovers, processes, vllm_adapter
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

    def __init__(self) -> None:
        """Makes a folder for all files of the engine, which the driver removes if this process is killed."""
        self._worker: VllmAsyncGenerationWorker | None = None
        leftovers.collect()
        self._folder = tempfile.tempdir = os.environ["TMPDIR"] = str(private_folder.make(leftovers.ACTORS))
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
        """Returns node, process and files of this actor, and a free port for the rendezvous of the ranks."""
        import ray

        node = ray.util.get_node_ip_address()
        return {
            "node": node,
            "port": free_port(node),
            "node_id": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
            "log": self._log,
            "folder": self._folder,
        }

    async def death(self) -> None:
        """Waits until the engine ends.

        Raises:
            EngineDiedError: It died.
        """
        raise await self._started().engine.death()

    async def state(self) -> dict[str, Any]:
        """Returns whether the engine lives and may generate (``problem``), and its weights; answers at all times."""
        engine = self._started().engine
        return {
            "alive": engine.alive,
            "problem": engine.readiness.problem,
            "weights": engine.readiness.held.value,
            "version": engine.readiness.version,
        }

    async def stream(
        self, kind: str, rows: Mapping[int, list[int]], rank: int | None, stop: Sequence[str], **options: Any
    ) -> AsyncGenerator[tuple[int, Any], None]:
        """Generates from prompts that the group has checked: ``samples`` or ``texts`` of `worker.generation.Requests`."""
        async for item in getattr(self._started().requests, kind)(rows, stop, rank=rank, **options):
            yield item

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Turns texts into token ids, as the worker does."""
        worker = self._started()
        tokenizer, special = worker.engine.llm.get_tokenizer(), worker.config.tokenizer.add_special_tokens
        return [vllm_adapter.encoded(tokenizer, text, special) for text in texts]

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a public method of the worker.

        Raises:
            QuirksError: The engine is not running.
        """
        return await getattr(self._started(), method)(*arguments, **named)

    def _started(self) -> VllmAsyncGenerationWorker:
        if self._worker is None:
            raise QuirksError("the engine of this rank is not running; call start, or restart, first")
        return self._worker


def plan_variables(environ: Mapping[str, str], fact_names: Iterable[str] = ()) -> dict[str, str]:
    """Returns the variables that affect plans: those that quirks read, and our own switches."""
    ours = {name: value for name, value in environ.items() if name.startswith(_OWN) and name not in _OF_ONE_PROCESS}
    return planned_variables(fact_names, environ) | {name: value for name, value in ours.items() if not is_secret(name)}


def _differences(there: Plan, here: Plan) -> str:
    found = diff(there, here)
    known = [f"{change.name} is {change.a!r} there and {change.b!r} here" for change in found.facts]
    slots = [f"{change.name} becomes {change.a['value']!r} there and {change.b['value']!r} here" for change in found.slots]
    quirks = [f"quirk {change.name} differs" for change in found.quirks]
    return "; ".join([*known, *slots, *quirks]) or "its installation applies other patches"


def reap(pid: int, folder: str, grace_s: float) -> None:
    """Makes sure, on an actor's own node, that its process has ended, and removes its folder of temporary files.

    After a while it is killed: one that was stopped (SIGSTOP) does not end at Ray's request.
    """
    deadline = time.monotonic() + grace_s
    while _runs(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    leftovers.remove_shared_memory(Path(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    found = processes.children([pid])
    return bool(found) and processes.all_run(found)
