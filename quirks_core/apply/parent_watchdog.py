"""Ends an engine's process when its parent process has ended; otherwise it would keep its GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

#: Seconds between two checks of the parent process.
_LOOK_S = 1.0
#: Seconds that a process gets to end by itself, so that it can end its children and free its shared memory.
_GRACE_S = 10.0

_watching = 0


def end_with_parent() -> None:
    """Ends this process when its parent has ended; does nothing in a process that a user started."""
    global _watching
    if multiprocessing.parent_process() is None or _watching == os.getpid():
        return
    _watching = os.getpid()  # a forked process inherits the number, but no thread
    threading.Thread(target=_watch, args=(os.getppid(),), name="model-quirks-parent-watchdog", daemon=True).start()


def _watch(parent: int) -> None:
    # Polls instead of waiting for a pipe to close: other processes may hold the parent's pipe open.
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
