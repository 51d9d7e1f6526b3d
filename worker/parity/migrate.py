"""Makes the dumps of two environments, one after the other and each in a process of its own, and compares them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO

from quirks_core.errors import QuirksError
from worker.parity.dump import STAGE, Dump, Order
from worker.parity.environments import Environment

#: Seconds that one dump may take.
TIMEOUT_S = 1800.0
#: Lines of a failed process that its error shows.
_LAST_LINES = 12
#: Seconds that a process gets to stop its engine.
_STOP_S = 20.0

#: Tells the user what comes next.
Tell = Callable[[str], None]


class DumpFailedError(QuirksError):
    """A dump in a process of its own failed; the message ends with the last lines of that process."""


def dumps(
    a: Environment, b: Environment, order: Order, folder: Path, *, timeout_s: float = TIMEOUT_S, tell: Tell = lambda _: None
) -> tuple[Dump, Dump]:
    """Makes A's dump, then B's, which scores A's tokens too.

    Args:
        a: The reference.
        b: The candidate.
        order: What to make; output and whose tokens to score are set here.
        folder: Where ``A.json`` and ``B.json`` go.
        timeout_s: Seconds that each may take.
        tell: Called with what comes next.

    Raises:
        DumpFailedError: One of them failed or took too long.
    """
    first, second = folder / "A.json", folder / "B.json"
    found_a = dump_in(
        a, order.model_copy(update={"output": str(first)}), timeout_s=timeout_s, tell=lambda text: tell(f"A: {text}")
    )
    order = order.model_copy(update={"output": str(second), "tokens_of": str(first)})
    return found_a, dump_in(b, order, timeout_s=timeout_s, tell=lambda text: tell(f"B: {text}"))


def dump_in(environment: Environment, order: Order, *, timeout_s: float = TIMEOUT_S, tell: Tell = lambda _: None) -> Dump:
    """Makes a dump with the interpreter of an environment.

    Args:
        environment: Which.
        order: What to make.
        timeout_s: Seconds that it may take.
        tell: Called with what comes next.

    Raises:
        DumpFailedError: It failed or took too long; no process of it is left.
    """
    output = Path(order.output)
    output.unlink(missing_ok=True)  # what an earlier run left must not pass for this one's
    with tempfile.TemporaryDirectory(prefix="quirks-dump-") as folder:
        file = Path(folder, "order.json")
        file.write_text(order.model_dump_json(), encoding="utf-8")
        code, last, hangs = _run([str(environment.python), "-P", "-m", "worker.parity.dump", str(file)], timeout_s, tell)
    if code == 0 and output.is_file():
        return Dump.read(output)
    if hangs:
        how = f"took longer than {timeout_s:g} s and was ended (--timeout)"
    elif code < 0:
        how = f"died of {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}" if code else "wrote no dump"
    other = environment.quirks != version("model-quirks")
    note = f" (model-quirks there is {environment.quirks}, here {version('model-quirks')})" if other else ""
    first = f"the dump by {environment} ({environment.python}) {how}{note}; its last lines:"
    raise DumpFailedError("\n    ".join([first, *last]))


def _run(command: list[str], timeout_s: float, tell: Tell) -> tuple[int, list[str], bool]:
    """Runs a process and everything below it; returns its exit code, its last lines, and whether it had to be ended."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(  # noqa: S603 - the interpreter that the user named, with our own module
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        reader = threading.Thread(target=_read, args=(process.stdout, last, tell), daemon=True)
        reader.start()
        hangs = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            hangs = True
        finally:
            _end(process)
            reader.join(_STOP_S)
    return process.returncode, list(last), hangs


def _read(lines: IO[str], last: deque[str], tell: Tell) -> None:
    for line in lines:
        if line.startswith(STAGE):
            tell(line.removeprefix(STAGE).strip())
        elif line.strip():
            last.append(line.rstrip()[:500])


def _end(process: subprocess.Popen[str]) -> None:
    """Ends whatever is left of a process' session; an engine stops by itself when its parent asks it to."""
    for how in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
