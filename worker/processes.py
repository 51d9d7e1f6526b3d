"""The operating-system processes of an engine: which there are, which must acknowledge, and how they end."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator

import psutil

from quirks_core.errors import ReceiptError

#: Names that vLLM gives to the children it starts from the driver.
_ENGINE_CORE, _COORDINATOR = "EngineCore", "VLLM_DP_Coordinator"
#: Python's own helper; it serves this whole process and ends with it.
_TRACKER = "multiprocessing.resource_tracker"


def descendants() -> frozenset[psutil.Process]:
    """Returns every process below this one, except Python's resource tracker."""
    found = psutil.Process().children(recursive=True)
    return frozenset(process for process in found if _TRACKER not in _command(process))


def engine_processes(before: Iterable[psutil.Process]) -> frozenset[psutil.Process]:
    """Returns the engine's processes: what vLLM started from this one, and everything below.

    Args:
        before: The processes that were there before the engine.
    """
    old = {process.pid for process in before}
    started = [child for child in multiprocessing.active_children() if child.name.startswith((_ENGINE_CORE, _COORDINATOR))]
    roots = [child.pid for child in started if child.pid is not None and child.pid not in old]
    return frozenset(process for root in roots for process in _with_children(root))


def expected_to_acknowledge(before: Iterable[psutil.Process]) -> dict[int, str]:
    """Returns name by process id of every process in which vLLM loads plugins: this one, engine cores and workers.

    The coordinator of data-parallel ranks loads none.

    Args:
        before: The processes that were there before the engine.

    Raises:
        ReceiptError: No engine core was found, so nobody can tell whether the plan is in force.
    """
    old = {process.pid for process in before}
    expected = {os.getpid(): "driver"}
    cores = [child for child in multiprocessing.active_children() if child.name.startswith(_ENGINE_CORE)]
    for core in cores:
        if core.pid is None or core.pid in old:
            continue
        try:
            workers = [process.pid for process in psutil.Process(core.pid).children() if _is_worker(process)]
        except psutil.NoSuchProcess:
            continue  # of an earlier engine: who reaps a process through psutil leaves multiprocessing in the dark
        expected[core.pid] = core.name
        expected.update(dict.fromkeys(workers, f"{core.name}'s worker"))
    if len(expected) == 1:
        raise ReceiptError("the engine's processes were not found, so nobody can tell whether the plan is in force in them")
    return expected


def end(processes: Iterable[psutil.Process], *, timeout_s: float = 10.0) -> None:
    """Ends processes, the hard way if need be; those that are gone already count as ended.

    Args:
        processes: The processes. One whose id the system has given away again is left alone.
        timeout_s: Seconds to wait before killing.
    """
    left = list(processes)
    for how in ("terminate", "kill"):
        for process in left:
            try:
                getattr(process, how)()
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(left, timeout=timeout_s)
        if not left:
            return


def _with_children(pid: int) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def _is_worker(process: psutil.Process) -> bool:
    """Tells a worker from the helpers of Python and of torch's compiler: by its title, or as a spawned process."""
    command = _command(process)
    title = f"{os.environ.get('VLLM_PROCESS_NAME_PREFIX', 'VLLM')}::"
    return command.startswith(title) or "multiprocessing.spawn" in command


def _command(process: psutil.Process) -> str:
    """The command line, or the title that a process has given itself instead; empty for one that is gone."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
