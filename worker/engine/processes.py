"""The operating-system processes of an engine: which there are, and how they end."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from multiprocessing.process import BaseProcess

import psutil

#: Names that vLLM gives to the children it starts from the driver.
ENGINE_CORE, _COORDINATOR = "EngineCore", "VLLM_DP_Coordinator"


def started(before: Collection[BaseProcess]) -> list[BaseProcess]:
    """Returns what vLLM started from this process; children that another thread starts meanwhile are not the engine's.

    Args:
        before: The children that were there before the engine. Among them may be some that have ended: multiprocessing never
            learns of it if psutil queried the system first, as `end` does.
    """
    new = [child for child in multiprocessing.active_children() if child not in before]
    return [child for child in new if child.name.startswith((ENGINE_CORE, _COORDINATOR))]


def engine_processes(before: Collection[BaseProcess]) -> frozenset[psutil.Process]:
    """Returns what vLLM started from this process, as for `started`, and everything below."""
    found: set[psutil.Process] = set()
    for child in started(before):
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(child.pid)
            found |= {root, *root.children(recursive=True)}
    return frozenset(found)


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
    """Ends processes, and kills those that are left after a while; one whose id now is another's is left alone."""
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
