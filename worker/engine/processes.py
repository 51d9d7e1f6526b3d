"""The operating-system processes of an engine: which there are, and how they end."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess

import psutil

#: Names that vLLM gives to the children it starts from the driver.
_ENGINE_CORE, _COORDINATOR = "EngineCore", "VLLM_DP_Coordinator"
#: Python's own helper; it serves this whole process and ends with it.
_TRACKER = "multiprocessing.resource_tracker"


def descendants() -> frozenset[psutil.Process]:
    """Returns every process below this one, except Python's resource tracker."""
    found = psutil.Process().children(recursive=True)
    return frozenset(process for process in found if _TRACKER not in _command(process))


def started(before: Iterable[psutil.Process]) -> list[BaseProcess]:
    """Returns what vLLM started from this process; children that another thread starts meanwhile are not the engine's.

    Args:
        before: The processes that were there before the engine.
    """
    # multiprocessing never learns that a child has ended if psutil queried the system first, as end() does.
    new = {process.pid for process in psutil.Process().children(recursive=True)} - {process.pid for process in before}
    children = [child for child in multiprocessing.active_children() if child.pid in new]
    return [child for child in children if child.name.startswith((_ENGINE_CORE, _COORDINATOR))]


def kill(children: Iterable[BaseProcess]) -> None:
    """Kills processes that this one started, without waiting for their end."""
    for child in children:
        child.kill()


def engine_processes(before: Iterable[psutil.Process]) -> frozenset[psutil.Process]:
    """Returns the engine's processes: what vLLM started from this one, and everything below.

    Args:
        before: The processes that were there before the engine.
    """
    roots = [child.pid for child in started(before) if child.pid is not None]
    return frozenset(process for root in roots for process in _with_children(root))


def cores(children: Iterable[BaseProcess]) -> dict[int, str]:
    """Returns the names of the engine cores among processes that vLLM started, by process id."""
    return {child.pid: child.name for child in children if child.pid is not None and child.name.startswith(_ENGINE_CORE)}


def children(pids: Iterable[int]) -> list[psutil.Process]:
    """Returns the processes with these ids, this one left out."""
    return [psutil.Process(pid) for pid in pids if pid != os.getpid() and psutil.pid_exists(pid)]


def all_run(processes: Iterable[psutil.Process]) -> bool:
    """Returns whether none of these has ended, also before an exit code was read."""
    try:
        return all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    except psutil.NoSuchProcess:
        return False


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


def _command(process: psutil.Process) -> str:
    """The command line, or the title that a process has given itself instead; empty for one that is gone."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
