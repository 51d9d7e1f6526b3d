"""The first part of ``make demo``: vLLM's own server, which knows nothing of model-quirks, with quirks by one variable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from quirks_core.apply.handed_down import HOOK_VARIABLE
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.cli.screen import Screen, line
from quirks_core.facts import vllm_metadata
from worker.refit.transport.ports import free_port

_PURPOSE = "rollout"
_OPTIONS = ("--load-format", "auto", "--dtype", "float32", "--enforce-eager", "--max-model-len", "256")
_OURS = "model-quirks: "
_START_S, _STOP_S = 120.0, 20.0


@contextmanager
def running_server(model: Path, console: Screen) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts ``vllm serve`` with MODEL_QUIRKS, which takes a while, and stops it at the end.

    Args:
        model: The checkpoint.
        console: Shows the command, what the hook logs, and the completion.

    Yields:
        What waits for the server, asks it for a completion and shows that. It returns ``log``, the lines of the hook, and
        ``text``, the completion, and raises a QuirksError if the server does not start.
    """
    if (problem := vllm_metadata.problem()) is not None:
        raise UsageError(f"{problem}; 'quirks doctor --mend' writes it")
    command = ["serve", str(model), *_OPTIONS]
    console.say(f"[bold]vLLM's own server[/]: $ {HOOK_VARIABLE}={_PURPOSE} vllm {line(' '.join(command))}")
    port = free_port("127.0.0.1")
    with tempfile.TemporaryFile() as output:
        server = subprocess.Popen(  # noqa: S603 - a server of ours, for this demonstration
            [sys.executable, "-m", "vllm.entrypoints.cli.main", *command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, HOOK_VARIABLE: _PURPOSE},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def answer() -> dict[str, Any]:
            with console.status("starting the server …"):
                text = _completion(server, f"http://127.0.0.1:{port}", str(model))
            # Not by the file's own position, at which the server writes.
            written = os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace").splitlines()
            return _show(console, text, written, server.returncode)

        try:
            yield answer
        finally:
            _stop(server)


def _show(console: Screen, text: str | None, written: list[str], code: int | None) -> dict[str, Any]:
    if text is None:
        last = "".join(f"\n  {item}" for item in written[-8:])
        raise QuirksError(f"the server did not start (exit code {code}):{last}")
    log = [item.partition(_OURS)[2] for item in written if _OURS in item]
    for item in log:
        console.say(line(item), indent=2)
    console.say(f"its completion: {line(text)}")
    console.print()
    return {"log": log, "text": text}


def _completion(server: subprocess.Popen[bytes], url: str, model: str) -> str | None:
    """Waits until the server is up and asks it; None if it ends before that, or takes too long."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.0}
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    until = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < until:
        try:
            with urlopen(request, timeout=_START_S) as answer:  # noqa: S310 - our own server
                return str(json.load(answer)["choices"][0]["text"])
        except OSError:
            time.sleep(0.3)
    return None


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Stops the server and every process that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(_STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    server.wait()
