"""Runs a scenario in a process group of its own and leaves nothing of it running, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from quirks_core.testing.lab import Outcome
from quirks_core.testing.proof import Run
from quirks_core.testing.scenario import NO_ERROR

#: Signals by which a process ends through its own fault; others come from outside (an out-of-memory killer, say).
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
#: How long the helpers of a process that has ended may take to follow it.
_GRACE_S = 3.0
_LOG_LINES = 3
#: The end of a traceback, or the mark that a crash leaves in vLLM's log.
_CAUSE = re.compile(r"(?:^|\s)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?:: .+)?|Segfault encountered)[\s!]*?$", re.MULTILINE)


def run_scenario(scenario: str, quirk_id: str, switches: Mapping[str, str], folder: Path, timeout_s: float) -> Run:
    """Runs a scenario in a process of its own.

    Args:
        scenario: ``package.module:function``.
        quirk_id: The quirk whose state in the scenario's plans is wanted.
        switches: ``MODEL_QUIRKS_*`` variables for the process; it inherits none of them.
        folder: Where checkpoints are kept between runs.
        timeout_s: Seconds after which the run is killed.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_QUIRKS_")}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quirks-prove-") as temporary:
        result, log = Path(temporary, "result.json"), Path(temporary, "log")
        # -P: a folder called `worker` where the user happens to be must not hide ours.
        command = [sys.executable, "-P", "-m", "quirks_core.testing.scenario", "--tied"]
        command += [scenario, quirk_id, str(result), str(folder)]
        with log.open("wb") as output, _group(command, {**environ, **switches}, output) as process:
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
        seconds = round(time.monotonic() - started, 1)
        if result.exists():  # also of a process that hung, or died, on its way out
            run = Run.model_validate({**json.loads(result.read_text(encoding="utf-8")), "seconds": seconds})
            return _with_cause(run, log)
        return _without_result(code, log, timeout_s).model_copy(update={"seconds": seconds})


def _with_cause(run: Run, log: Path) -> Run:
    """Adds what the engine's processes logged first: their error reaches the driver as a mere "see above"."""
    cause = _CAUSE.search(log.read_text(encoding="utf-8", errors="replace"))
    if not cause or not run.outcome or run.outcome.measure != NO_ERROR or cause[1] in run.outcome.got:
        return run
    return run.model_copy(
        update={"outcome": replace(run.outcome, got=f"{run.outcome.got.rstrip('.')}; first of all: {cause[1].strip()}")}
    )


def _without_result(code: int | None, log: Path, timeout_s: float) -> Run:
    if code is None:
        return Run(error=f"not done after {timeout_s:g} s, so it was killed")
    name = signal.Signals(-code).name if code < 0 else ""
    if name in _CRASHES:
        return Run(outcome=Outcome(False, "the process lives on", f"it died of {name}", "it lives"), crash=name)
    how = f"was killed from outside ({name})" if name else f"ended with exit code {code} and without a result"
    text = log.read_text(encoding="utf-8", errors="replace")
    last = [line.strip() for line in text.splitlines() if line.strip()][-_LOG_LINES:]
    return Run(error="; ".join([f"the process {how}", *last]))


@contextmanager
def _group(command: Sequence[str], environ: Mapping[str, str], output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    # Standard input is held open and never written to: the process ends its group when it closes, so that nothing
    # outlives us either.
    process = subprocess.Popen(  # noqa: S603 - our own module
        command, env=environ, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
    )
    try:
        yield process
    finally:
        _end_group(process)
        if process.stdin:
            process.stdin.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a process group; after a normal end, its helpers get a moment to go by themselves."""
    deadline = time.monotonic() + (_GRACE_S if process.poll() is not None else 0.0)
    with suppress(ProcessLookupError):  # nobody is left
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
