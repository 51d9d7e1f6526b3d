"""Makes the dumps of two environments, one after the other, each in a separate process."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import deque
from importlib.metadata import version
from pathlib import Path

from quirks_core.base import child_process
from quirks_core.base.errors import QuirksError
from worker.lab.compare.dump import STAGE, Dump, Order
from worker.lab.compare.environments import Environment
from worker.lab.parity.records import Notify

#: Seconds that one dump may take.
TIMEOUT_S = 1800.0
#: Lines of a failed process that its error shows.
_LAST_LINES = 12
#: Seconds in which a process must stop its engine.
_STOP_S = 20.0


class DumpFailedError(QuirksError):
    """A dump in a separate process failed; the message ends with the last lines of that process."""


def dumps(
    a: Environment, b: Environment, order: Order, folder: Path, *, timeout_s: float = TIMEOUT_S, notify: Notify = lambda _: None
) -> tuple[Dump, Dump]:
    """Makes A's dump, then B's, which scores A's tokens too.

    Args:
        a: The reference.
        b: The candidate.
        order: What to make; output and whose tokens to score are set here.
        folder: Where ``A.json`` and ``B.json`` go.
        timeout_s: Seconds that each may take.
        notify: Called with what comes next.

    Raises:
        DumpFailedError: One of them failed or took too long.
    """
    first, second = str(folder / "A.json"), str(folder / "B.json")
    of_a, of_b = {"output": first}, {"output": second, "tokens_of": first}
    found = dump_in(a, order.model_copy(update=of_a), timeout_s=timeout_s, notify=lambda text: notify(f"A: {text}"))
    return found, dump_in(b, order.model_copy(update=of_b), timeout_s=timeout_s, notify=lambda text: notify(f"B: {text}"))


def dump_in(environment: Environment, order: Order, *, timeout_s: float = TIMEOUT_S, notify: Notify = lambda _: None) -> Dump:
    """Makes a dump with the interpreter of an environment.

    Raises:
        DumpFailedError: It failed or took longer than `timeout_s`; no process of it is left.
    """
    output = Path(order.output)
    output.unlink(missing_ok=True)  # the dump of an earlier run must not be taken for this one's
    with tempfile.TemporaryDirectory(prefix="quirks-dump-") as folder:
        file = Path(folder, "order.json")
        file.write_text(order.model_dump_json(), encoding="utf-8")
        code, last = _run([str(environment.python), "-P", "-m", "worker.lab.compare.dumping", str(file)], timeout_s, notify)
    if code == 0 and output.is_file():
        return Dump.read(output)
    if code is None:
        how = f"took longer than {timeout_s:g} s and was ended (--timeout)"
    elif code < 0:
        how = f"died of {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}" if code else "wrote no dump"
    if environment.quirks != (ours := version("model-quirks")):
        how += f" (model-quirks there is {environment.quirks}, here {ours})"
    first = f"the dump by {environment} ({environment.python}) {how}; its last lines:"
    raise DumpFailedError("\n    ".join([first, *last]))


def _run(command: list[str], timeout_s: float, notify: Notify) -> tuple[int | None, list[str]]:
    """Runs a dump; returns its exit code, None if it took too long, and its last lines."""
    last: deque[str] = deque(maxlen=_LAST_LINES)

    def read(line: str) -> None:
        if line.startswith(STAGE):
            notify(line.removeprefix(STAGE).strip())
        elif line.strip():
            last.append(line.rstrip()[:500])

    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    # An engine stops by itself when it is interrupted.
    ends = signal.SIGINT
    code = child_process.run(command, environ=environ, output=read, limit_s=timeout_s, ask=ends, grace_s=_STOP_S)
    return code, list(last)
