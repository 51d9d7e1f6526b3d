"""One vLLM engine with its plan in force: started, proven by a receipt, watched, and stopped without leaving a process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from quirks_core.apply import process
from quirks_core.apply.handed_down import FOLDER_VARIABLE, FRONT_END_VARIABLE
from quirks_core.apply.process import environment
from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, ReceiptError
from quirks_core.hook.in_force import RUNS, AppliedQuirks, in_force
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan
from worker.engine import failures, processes, vllm_adapter
from worker.engine.readiness import Readiness, start_problem
from worker.errors import EngineDiedError, TransferError

if TYPE_CHECKING:
    import psutil

_E = TypeVar("_E", bound=Exception)
_P = ParamSpec("_P")
_T = TypeVar("_T")

#: How the name of a folder begins that has the sockets of refits.
REFITS = "mq-"
_NOT_IN_FORCE = "the plan is not in force everywhere"
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
#: Folder of vLLM's sockets. It never takes its sockets away, and every user can see them in the system's folder; ours is
#: closed to others and goes with the engine.
_SOCKETS = "VLLM_RPC_BASE_PATH"
#: A socket's path has at most 107 bytes, and vLLM's names have 37.
_LONGEST_FOLDER = 70
#: Seconds that an engine gets to stop by itself; it takes about 5.
_STOP_S = 15.0
#: Seconds that a dying engine gets until its exit code is read.
_ENDING_S = 5.0
#: Seconds between two looks at whether the processes are alive.
_LOOK_S = 0.2


def _set_variables(folder: Path) -> None:
    """Sets where the engine's processes have their sockets and log errors, and that they end with this one."""
    process.keep_errors(folder)
    ours = {FOLDER_VARIABLE: str(folder), FRONT_END_VARIABLE: str(os.getpid())}
    defaults = {_START_METHOD: "spawn"}  # a forked process takes over the memory and the locks of a trainer
    if len(str(folder)) <= _LONGEST_FOLDER:
        defaults[_SOCKETS] = str(folder)
    for variable, value in {**ours, **{name: value for name, value in defaults.items() if name not in os.environ}}.items():
        environment.set(variable, value)


def remove_leftovers() -> None:
    """Removes what this user's processes left that no longer run."""
    with suppress(OSError):  # a folder for temporary files that cannot be listed
        private_folder.remove_abandoned((RUNS, REFITS))


class Engine:
    """An engine from start to stop.

    Attributes:
        receipt: What every process has; None before the start.
        readiness: Whether it may generate.
        coalesces: Whether its core holds the outputs of requests marked for it until they finish.
        warnings: What the user should know of how the plan was put into force.
    """

    def __init__(self, plan: Plan, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Keeps what the start needs; the environment is that of its processes beside the plan's variables."""
        self._plan = plan
        self._arguments = arguments
        self._environment = environment
        self._applied: AppliedQuirks | None = None
        self._exit = ExitStack()
        self._processes: frozenset[psutil.Process] = frozenset()
        self._started: list[BaseProcess] = []
        self._members: list[psutil.Process] = []
        self._llm: Any = None
        self._gone = False
        self._watching: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Timeout] = set()
        self.receipt: Receipt | None = None
        self.readiness = Readiness(start_problem(plan))
        self.coalesces = any(patch.target == vllm_adapter.COUNTS_HELD for patch in plan.patches)
        self.warnings: list[str] = []

    @property
    def llm(self) -> Any:
        """VLLM's ``AsyncLLM``.

        Raises:
            QuirksError: The engine does not run.
        """
        if self._llm is None:
            raise QuirksError("the engine is not running; call post_init_async first")
        return self._llm

    @property
    def alive(self) -> bool:
        """Whether it was started, and neither died nor was stopped since."""
        return self._llm is not None and not self._gone

    async def start(self) -> None:
        """Puts the plan into force, starts the engine and collects the receipt.

        Raises:
            EngineStartError: The engine died; the message has its last error lines, the notes what quirks have to do with it.
            ReceiptError: A process does not carry out the plan, or the engine changed a value that a quirk set.
        """
        remove_leftovers()
        before = multiprocessing.active_children()
        self._applied = applied = self._exit.enter_context(in_force(self._plan, self._environment))
        try:
            _set_variables(applied.folder)
            self._llm = vllm_adapter.start_engine(self._arguments, applied.carried_by)
            self._processes = processes.engine_processes(before)
            self._started = processes.started(before)
            self._watching = asyncio.create_task(self._watch(), name="engine-watch")
            self.receipt = self._prove(applied)
        except BaseException as error:
            folder = applied.folder
            problems: tuple[str, ...] = ()
            with suppress(ReceiptError):  # whatever is wrong with the file, the engine must be stopped
                problems = applied.problems()
            lines, logged = failures.last_errors(folder), failures.tracebacks(folder, error)
            self._processes |= processes.engine_processes(before)
            await self.stop()
            if not isinstance(error, Exception):
                raise
            if isinstance(error, QuirksError):
                self._note_quirks(error, logged)
                raise
            if problems:
                raise self._note_quirks(ReceiptError(f"{_NOT_IN_FORCE}: {'; '.join(problems)}"), logged) from error
            raise self._note_quirks(failures.start_error(error, lines), logged) from error
        self.warnings += applied.warnings

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Any]:
        """Gives the ``AsyncLLM``; what is awaited meanwhile ends when the engine does.

        Left alone, vLLM's calls wait for ever for the answer of a process that was killed.

        Raises:
            EngineDiedError: A process of the engine is gone, or the engine was stopped meanwhile.
        """
        if self._gone:
            raise await self._died()
        llm = self.llm
        over = asyncio.timeout(None)
        try:
            async with over:
                self._waiting.add(over)
                try:
                    yield llm
                finally:
                    self._waiting.discard(over)
        except Exception as error:
            # vLLM's engine core reports at first that the call of a killed worker was cancelled.
            if not (over.expired() or llm.errored or not processes.all_run(self._members)):
                raise
            raise await self._died() from (None if over.expired() else error)

    async def call(self, function: Callable[Concatenate[Any, _P], _T], *arguments: _P.args, **named: _P.kwargs) -> list[_T]:
        """Calls a function in every worker of the engine.

        Args:
            function: A function of this package; it gets vLLM's worker first.
            *arguments: Plain values, as its answer must be.
            **named: The same, by name.

        Returns:
            What each worker returned; tuples come back as lists.

        Raises:
            EngineDiedError: As for `watched`.
            WorkerCallError: The function raised something; the kind that it raised, if it is one of `worker.errors`.
        """
        name = f"{function.__module__}:{function.__qualname__}"
        async with self.watched() as llm:
            answers = await vllm_adapter.call_workers(llm, name, arguments, named)
        if raised := [failures.of_worker(answer) for answer in answers if "error" in answer]:
            # Among workers that wait for each other, the first to fail has another error than the rest.
            raise min(raised, key=lambda error: isinstance(error, TransferError))
        return [answer["value"] for answer in answers]

    async def generated_so_far(self) -> list[int]:
        """Returns how many tokens each request has that the engine works on; error as for `watched`."""
        async with self.watched() as llm:
            return await vllm_adapter.generated_so_far(llm, coalesces=self.coalesces)

    async def stop(self) -> None:
        """Ends every process that was started and takes the plan out of force; may be called again."""
        llm, self._llm = self._llm, None
        if self._watching is not None and not self._watching.get_loop().is_closed():
            self._watching.cancel()
        self._end()
        await asyncio.sleep(0)  # who waits for the engine gives up now, not when it is gone
        try:
            if llm is not None:
                vllm_adapter.stop_engine(llm, _STOP_S)
        finally:
            if self._applied is not None:
                await asyncio.to_thread(processes.end, self._processes)
                self._applied = None
                self._exit.close()

    def _prove(self, applied: AppliedQuirks) -> Receipt:
        """Puts together what every process carries out, and what the engine's configuration holds.

        Each core has called its workers, and compared its values and theirs with the plan, before it took a request.
        """
        receipts = applied.receipt()
        acknowledged = {receipt.processes[0].pid for receipt in receipts}
        cores = [child for child in self._started if child.name.startswith(processes.ENGINE_CORE)]
        if late := [f"{core.name} (process {core.pid})" for core in cores if core.pid not in acknowledged]:
            raise ReceiptError(f"{_NOT_IN_FORCE}: {', '.join(late)} did not acknowledge the plan")
        rows = [row for receipt in receipts for row in receipt.processes]
        self._members = processes.children(row.pid for row in rows if row.host == receipts[0].host)
        rows.sort(key=lambda row: (row.host, row.process, row.pid))
        return receipts[0].model_copy(update={"processes": (process.acknowledgement(), *rows)})

    async def _watch(self) -> None:
        """Waits for the end of a process that we started, which is the end of the engine."""
        await self._one_ends()
        self._end()

    async def _one_ends(self) -> None:
        # Looked at, not waited for: a forked engine's sentinel was seen to be readable while the process was alive.
        while all(process.is_alive() for process in self._started):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _end(self) -> None:
        """Ends every wait for an engine that is gone."""
        self._gone = True
        waiting, self._waiting = self._waiting, set()
        for over in waiting:
            over.reschedule(asyncio.get_running_loop().time())

    async def _died(self) -> EngineDiedError:
        if self._llm is None or (applied := self._applied) is None:
            return EngineDiedError(f"the engine was shut down meanwhile; {EngineDiedError.REMEDY}")
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                await self._one_ends()
        self._end()
        error = self._note_quirks(failures.death(self._started, applied.folder), failures.tracebacks(applied.folder))
        self.readiness.broken(str(error))
        return error

    def _note_quirks(self, error: _E, logged: str) -> _E:
        for note in failures.notes(error, self._plan, logged):
            error.add_note(note)
        return error
