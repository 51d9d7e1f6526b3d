"""Runs a scenario in a process group of its own and leaves nothing of it running, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from quirks_core.base import child_process
from worker.lab.kit.lab import Outcome
from worker.lab.kit.proof import Run
from worker.lab.kit.scenario import NO_ERROR

#: Signals by which a process ends through its own fault; others come from outside (an out-of-memory killer, say).
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
#: What is looked at in a run whose process died.
_LIVES = "the process lives on"
_LOG_LINES = 3
#: The end of a traceback, or the mark that a crash leaves in vLLM's log.
_CAUSE = re.compile(r"(?:^|\s)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?:: .+)?|Segfault encountered)[\s!]*?$", re.MULTILINE)


def run_scenario(
    scenario: str, quirk_id: str, switches: Mapping[str, str], folder: Path, timeout_s: float, crash: str = ""
) -> Run:
    """Runs a scenario in a process of its own.

    An engine that dies, or does not start, is an outcome only with the error that the quirk declares. Any other error may come
    from a full disk, a lost file or a busy machine, and says nothing about the quirk.

    Args:
        scenario: ``package.module:function``.
        quirk_id: The quirk whose state in the scenario's plans is wanted.
        switches: ``MODEL_QUIRKS_*`` variables for the process; it inherits none of them.
        folder: Where checkpoints are kept between runs.
        timeout_s: Seconds after which the run is killed.
        crash: The error that the quirk declares (`quirks_core.declaration.quirk.Quirk.crash`); empty if it declares none.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_QUIRKS_")}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quirks-prove-") as temporary:
        result, log = Path(temporary, "result.json"), Path(temporary, "log")
        # -P: a folder called `worker` where the user happens to be must not hide ours.
        command = [sys.executable, "-P", "-m", "worker.lab.kit.scenario", scenario, quirk_id, str(result), str(folder)]
        with log.open("wb") as output:
            code = child_process.run(command, environ={**environ, **switches}, output=output, limit_s=timeout_s)
        seconds = round(time.monotonic() - started, 1)
        text = log.read_text(encoding="utf-8", errors="replace")
        if result.exists():  # also of a process that hung, or died, on its way out
            run = Run.model_validate({**json.loads(result.read_text(encoding="utf-8")), "seconds": seconds})
            run = _with_cause(run, text)
        else:
            run = _without_result(code, text, timeout_s).model_copy(update={"seconds": seconds})
    if run.outcome is None or run.outcome.measure not in (NO_ERROR, _LIVES):
        return run
    if crash and re.search(crash, f"{run.outcome.got}\n{text}"):
        return run
    error = f"an error that the quirk does not declare (crash=…): {run.outcome.got}"
    return run.model_copy(update={"outcome": None, "crash": "", "error": error})


def _with_cause(run: Run, log: str) -> Run:
    """Adds what the engine's processes logged first: their error reaches the driver as a mere "see above"."""
    cause = _CAUSE.search(log)
    if not cause or not run.outcome or run.outcome.measure != NO_ERROR or cause[1] in run.outcome.got:
        return run
    return run.model_copy(
        update={"outcome": replace(run.outcome, got=f"{run.outcome.got.rstrip('.')}; first of all: {cause[1].strip()}")}
    )


def _without_result(code: int | None, log: str, timeout_s: float) -> Run:
    if code is None:
        return Run(error=f"not done after {timeout_s:g} s, so it was killed")
    name = signal.Signals(-code).name if code < 0 else ""
    if name in _CRASHES:
        return Run(outcome=Outcome(False, _LIVES, f"it died of {name}", "it lives"), crash=name)
    how = f"was killed from outside ({name})" if name else f"ended with exit code {code} and without a result"
    last = [line.strip() for line in log.splitlines() if line.strip()][-_LOG_LINES:]
    return Run(error="; ".join([f"the process {how}", *last]))
