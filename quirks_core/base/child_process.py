"""Runs a command in a new process group, and ends the whole group when the command or this process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: Where output goes: a file, its descriptor, or a function that gets every line.
Output = IO[bytes] | int | Callable[[str], None]

#: Seconds that a process gets to end by itself and clean up; and seconds that the system gets to end a killed process.
GRACE_S, _KILLED_S = 5.0, 5.0
#: The commands that threads of this process wait for, each the leader of its group.
_running: set[subprocess.Popen[bytes]] = set()
#: Kills a process group when its standard input closes: the system closes it when the process that started this program ends.
_WATCHDOG = """
import os, signal, sys
group = sys.stdin.readline()
sys.stdin.read()
if group:
    os.killpg(int(group), signal.SIGKILL)
"""


def run(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    output: Output = subprocess.DEVNULL,
    limit_s: float | None = None,
    ask: signal.Signals = signal.SIGTERM,
    grace_s: float = GRACE_S,
) -> int | None:
    """Runs a command and waits for its end; when this returns, all processes that it started have ended as well.

    Args:
        command: The command and its arguments; its standard input is empty.
        environ: Its environment; that of this process if None.
        output: Where standard output and standard error go, together.
        limit_s: Maximum duration in seconds; None for no limit.
        ask: The signal that is sent before the kill; on SIGINT Python programs clean up.
        grace_s: Seconds between that signal and the kill, also for processes that the command left running.

    Returns:
        Its exit status, the negative number of the signal that ended it, or None if it took longer than the limit.

    Raises:
        OSError: The system cannot start it.
        ValueError: An argument or a variable holds a null character.
    """
    with _descriptor(output) as descriptor, _watchdog() as watch:
        process = subprocess.Popen(  # noqa: S603 - what the caller wants to run
            command, env=environ, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
        )
        _running.add(process)
        try:
            watch(process.pid)
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process, ask, grace_s)
            _running.discard(process)


def end_all() -> None:
    """Ends the commands that other threads run; each thread then cleans up after its own."""
    for process in list(_running):
        process.terminate()


@contextmanager
def _watchdog() -> Iterator[Callable[[int], object]]:
    """Starts a process that kills a group if this process is killed; yields a function that gives it the group."""
    reading, writing = os.pipe()
    command, quiet = [sys.executable, "-I", "-S", "-c", _WATCHDOG], subprocess.DEVNULL
    watchdog = subprocess.Popen(command, stdin=reading, stdout=quiet, stderr=quiet, start_new_session=True)  # noqa: S603 - ours
    os.close(reading)
    try:
        yield lambda group: os.write(writing, f"{group}\n".encode())
    finally:
        watchdog.kill()
        watchdog.wait()
        os.close(writing)


@contextmanager
def _descriptor(output: Output) -> Iterator[IO[bytes] | int]:
    """Yields a file or descriptor that a process can write to."""
    if not callable(output):
        yield output
        return
    reading, writing = os.pipe()
    reader = threading.Thread(target=_read, args=(reading, output), daemon=True)
    reader.start()
    try:
        yield writing
    finally:
        os.close(writing)
        reader.join(GRACE_S)  # a process that left the group may hold the pipe open


def _read(descriptor: int, notify: Callable[[str], None]) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            notify(line.rstrip("\n"))


def _end(process: subprocess.Popen[bytes], ask: signal.Signals, grace_s: float) -> None:
    """Waits until the whole group has ended; signals a command that still runs, and kills what does not end in time."""
    try:
        if process.poll() is None:
            _send(process.pid, ask)
        _wait_for_all(process, grace_s)
    finally:
        _send(process.pid, signal.SIGKILL)
        _wait_for_all(process, _KILLED_S)


def _wait_for_all(process: subprocess.Popen[bytes], most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while process.poll() is None or (_send(process.pid, 0) and _has_living(process.pid)):
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _has_living(group: int) -> bool:
    """Returns whether a group has a process that is not a zombie; in containers, often nothing reaps orphaned zombies."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            state, _, number = stat.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[:3]
            if state != "Z" and number == str(group):
                return True
    return sys.platform != "linux"


def _send(group: int, number: int) -> bool:
    """Sends a signal to a process group; False if the group has no process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group that has ended
        return False
    return True
