"""Runs a command in a new process group, and ends the whole group when the command ends."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

#: Where output goes: a file, its descriptor, or a function that gets every line.
Output = IO[bytes] | int | Callable[[str], None]

#: Seconds that a process gets to end by itself and clean up.
GRACE_S = 5.0
#: The commands that threads of this process wait for, each the leader of its group.
_running: set[subprocess.Popen[bytes]] = set()
#: Starts a command that the system kills when the process that started it is killed (`man 2 prctl`: PR_SET_PDEATHSIG is 1).
#: A program of its own: Python code between fork and exec (`preexec_fn`) can wait for ever for a lock of another thread.
_ENDING_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]} cannot be started: {error}")
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
    """Runs a command and waits for its end; when this returns, all processes of its group have ended or are killed.

    On Linux the command is killed when this process is.

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
    with _descriptor(output) as descriptor:
        process = subprocess.Popen(  # noqa: S603 - what the caller wants to run
            _ending_with_parent(command, environ), env=environ,
            stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True,
        )  # fmt: skip
        _running.add(process)
        try:
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


def _ending_with_parent(command: Sequence[str], environ: Mapping[str, str] | None) -> Sequence[str]:
    if sys.platform != "linux":
        return command
    if shutil.which(command[0], path=(os.environ if environ is None else environ).get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", "-c", _ENDING_WITH_PARENT, str(os.getpid()), *command]


def _end(process: subprocess.Popen[bytes], ask: signal.Signals, grace_s: float) -> None:
    """Signals a command that still runs, and kills what of its group does not end in time."""
    deadline = time.monotonic() + grace_s
    try:
        if process.poll() is None:
            _send(process.pid, ask)
        while (process.poll() is None or _send(process.pid, 0)) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        _send(process.pid, signal.SIGKILL)
        process.wait()


def _send(group: int, number: int) -> bool:
    """Sends a signal to a process group; False if the group has no process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group that has ended
        return False
    return True
