"""Ends an engine's process when the process that started it has gone; it would keep its GPU otherwise."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

#: Seconds between two looks at who the parent is.
_LOOK_S = 1.0
#: Seconds that a process gets to end by itself, so that its children and its shared memory go with it.
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
    # Looked at, not waited for: who else holds the pipe to the parent would keep it open.
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
