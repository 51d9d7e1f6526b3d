"""Makes the rows of a sweep: each engine in a process group of its own, with a time limit, of which nothing is left running."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from quirks_core import child_process
from quirks_core.errors import shortened
from quirks_core.packages import installed_platform, installed_versions
from worker.sweep.models import FURTHER
from worker.sweep.records import Row, Run, Stage
from worker.testing.proof import PACKAGES

#: Seconds that one engine may take; most take 20 to 40 s on two CPU cores.
TIMEOUT_S = 240.0
#: The end of a traceback.
_ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): .+)$", re.MULTILINE)
#: What differs between two runs of the same row.
_NUMBER = re.compile(r" \(pid \d+\)")


def dependencies(kind: str) -> dict[str, str]:
    """Returns what a row depends on: versions by package, the platform, and the values of the kind's configuration."""
    installed = installed_versions()
    values = json.dumps(FURTHER.get(kind), sort_keys=True)
    return {
        "platform": installed_platform() or "",
        "values": hashlib.sha256(values.encode()).hexdigest()[:16],
        **{name: installed.get(name, "") for name in PACKAGES},
    }


def make(kind: str, timeout_s: float = TIMEOUT_S, tell: Callable[[str], None] = lambda _: None) -> Row:
    """Makes the row of one kind: an engine that is refitted, and, unless that is right, one from disk to tell why.

    Args:
        kind: One of `worker.sweep.models.KINDS`.
        timeout_s: Seconds that each engine may take.
        tell: Called before each engine starts.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quirks-sweep-") as folder:
        tell(f"{kind}: refits")
        run = _run(kind, "refit", Path(folder), timeout_s)
        disk = None
        if not run.right and run.stage not in (Stage.BUILD, Stage.PLAN, Stage.START):
            tell(f"{kind}: from disk")
            disk = _run(kind, "disk", Path(folder), timeout_s)
    return Row(
        kind=kind,
        run=run,
        disk=disk,
        seconds=round(time.monotonic() - began),
        date=datetime.now(UTC).date(),
        depends=dependencies(kind),
    )


def _run(kind: str, weights: str, folder: Path, timeout_s: float) -> Run:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_QUIRKS_")}
    result, log = folder / f"{weights}.json", folder / f"{weights}.log"
    # -P: a folder called `worker` where the user happens to be must not hide ours.
    command = [sys.executable, "-P", "-m", "worker.sweep.run", kind, weights, str(result), str(folder)]
    with log.open("wb") as output:
        code = child_process.run(command, environ=environ, output=output, limit_s=timeout_s)
    run = Run.model_validate_json(result.read_bytes()) if result.exists() else Run(stage=Stage.BUILD)
    if run.stage is Stage.DONE:  # also of a process that hung, or died, on its way out
        return run
    killed = code is None or -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    how = f"not done after {timeout_s:g} s" if code is None else f"ended with exit code {code}"
    error = _NUMBER.sub("", _with_cause(run.error or how, log))
    return run.model_copy(update={"error": error, "killed": killed})


def _with_cause(error: str, log: Path) -> str:
    """Adds what the engine logged first: its error often reaches the driver as a mere "see above"."""
    cause = _ERROR.search(log.read_text(encoding="utf-8", errors="replace"))
    if cause is None or cause[1].strip() in error:
        return error
    return f"{error.rstrip('.')}; first of all: {shortened(cause[1], 300)}"
