"""Programs as copies of a process that has imported vLLM, each with processes that it can turn into what it wants spawned.

A program that starts an engine imports vLLM, and so does each process that it spawns: 10 s each. Here the fork server makes the
program, as it makes engines for tests, and the first thing that the program does is to fork some spare processes, which wait
for what they are to be. They are its children, as spawned ones are, and know as little of what it does as those.

A program that reads its command line or environment before vLLM's import, as `quirks run` does, wants to be started.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from multiprocessing import (
    context,
    forkserver,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    process,
    reduction,
    resource_tracker,
    spawn,
)
from pathlib import Path
from typing import Any

import fork_server

#: What most programs ask for: two engine cores with an API server each, and a coordinator; and below each of these, workers.
_SPARES, _SPARES_BELOW = 5, 2
_MOST_FDS = 64
#: What makes a process take its spare ones: in force as long as somebody holds it.
_PATCHES = contextlib.ExitStack()


class Program:
    """A program that was forked: the part of `subprocess.Popen` that tests need, in a session of its own."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: int, stderr: int) -> None:
        """Starts it; the fork server must run.

        Args:
            command: The words: a Python with ``-c`` or a script, or a script that is a program.
            env: Its environment.
            cwd: Its working directory.
            stdout: Where its output goes.
            stderr: Where its errors go.
        """
        outputs = _Outputs(stdout, stderr)
        self._process = fork_server.ForkContext().Process(target=_main, args=(list(command), dict(env), str(cwd), outputs))
        self._process.start()
        self.pid: int = self._process.pid
        self.args = command

    @staticmethod
    def can_be(command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether a command runs a Python script that can be forked: from a process in which nothing is compiled."""
        first, *words = command
        is_module = Path(first).name.startswith("python") and [word for word in words if word != "-u"][:1] == ["-m"]
        return env.get("TORCHDYNAMO_DISABLE") == "1" and not is_module

    @property
    def returncode(self) -> int | None:
        """How it ended."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Looks whether it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended.

        Raises:
            TimeoutExpired: It did not.
        """
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it."""
        self.send_signal(signal.SIGKILL)


#: A program, started or forked from a process that has imported vLLM.
Started = subprocess.Popen[bytes] | Program


def start(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: int, forks: bool = True) -> Started:
    """Starts a program in a session of its own, forked if it can be and may."""
    if forks and Program.can_be(command, env):
        fork_server.start()
        return Program(command, env=env, cwd=cwd, stdout=output, stderr=output)
    files: dict[str, int] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=env, cwd=cwd, start_new_session=True, **files)


def run(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, forked if it can be.

    Returns:
        Its exit code, and what it wrote, errors included.

    Raises:
        TimeoutExpired: It does not end; it is killed.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        program = start(command, env=env, cwd=cwd, output=output.fileno())
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        output.seek(0)
        return subprocess.CompletedProcess(command, code, output.read())


def handed_over(server: str) -> int:
    """Has a server make the program that this process was started for, in this one's stead; returns its exit code.

    The program is no child of whoever started this process, which must know it by what the program says of itself, as Ray does.
    """
    fork_server.use(server)
    words = [sys.executable, *sys.orig_argv[1:]]
    program = Program(words, env=os.environ, cwd=Path.cwd(), stdout=1, stderr=2)
    signal.signal(signal.SIGTERM, lambda number, _: program.send_signal(number))
    parent = os.getppid()
    while (code := program.poll()) is None:
        if os.getppid() != parent:  # whose end is that of its workers, which see it by this number
            program.kill()
        time.sleep(0.2)
    return code


class _Outputs:
    """Files for the new process, which has them once it is there."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, tuple(reduction.DupFd(number) for number in self.numbers)


def _detached(*files: Any) -> _Outputs:
    return _Outputs(*(file.detach() for file in files))


def _main(command: Sequence[str], environment: Mapping[str, str], folder: str, outputs: _Outputs) -> None:
    """Runs in the new process: makes it look like one that was started, and runs the program."""
    import imported_vllm
    from vllm.logger import _configure_vllm_root_logger

    os.setsid()
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, output in enumerate(outputs.numbers, 1):
        os.dup2(output, number)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the program
    process._current_process, process._parent_process, process._children = imported_vllm.MAIN, None, set()
    imported_vllm.MAIN.name = "MainProcess"  # which `multiprocessing` has changed
    process.ORIGINAL_DIR, tempfile.tempdir = folder, None
    _configure_vllm_root_logger()
    with_spares(_SPARES)
    name, source = _script(command, [entry for entry in imported_vllm.PATH if entry and entry not in before])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update({"__file__": name} if name != "-c" else {}, __builtins__=__builtins__)
    try:
        exec(compile(source, name if name != "-c" else "<string>", "exec"), main.__dict__)  # noqa: S102 - as Python does
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)  # not as `multiprocessing` prints it
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def _script(command: Sequence[str], others: Sequence[str]) -> tuple[str, str]:
    """Sets the path and the arguments of a program; returns its name and its source."""
    first, *words = command
    if Path(first).name.startswith("python"):
        first, *words = [word for index, word in enumerate(words) if index or word != "-u"]
    source = words.pop(0) if first == "-c" else Path(first).read_text(encoding="utf-8")
    sys.argv = [first, *words]
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:] = ["" if first == "-c" else str(Path(first).resolve().parent), *filter(None, path.split(os.pathsep)), *others]
    return first, source


class _Popen(popen_forkserver.Popen):
    """Makes a spare process what is wanted."""

    poll = popen_fork.Popen.poll
    spares: list[tuple[int, socket.socket]] = []  # noqa: RUF012 - of this process

    def _launch(self, wanted: Any) -> None:
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(wanted._name), buffer)
            reduction.dump(wanted, buffer)
        finally:
            context.set_spawning_popen(None)
        self.pid, connection = self.spares.pop(0)
        (child_r, to_child), (self.sentinel, child_w) = os.pipe(), os.pipe()
        with connection:
            reduction.sendfds(connection, [child_r, child_w, resource_tracker.getfd(), *self._fds])
        for number in (child_r, child_w):
            os.close(number)
        self.finalizer = None
        self._open = os.dup(to_child)  # how the child sees that its parent is there
        with open(to_child, "wb") as file:  # noqa: PTH123 - a number
            file.write(buffer.getbuffer())


class _Spawned(fork_server.LikeTheParent, context.SpawnProcess):
    @staticmethod
    def _Popen(wanted: Any) -> Any:  # noqa: N802 - multiprocessing's
        return _Popen(wanted) if _Popen.spares else popen_spawn_posix.Popen(wanted)


class _Context(context.SpawnContext):
    Process = _Spawned


def with_spares(count: int) -> None:
    """Forks spare processes, which this one gets where it wants some spawned; to be called while it has one thread."""
    _Popen.spares = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            for connection in (ours, *(other for _, other in _Popen.spares)):
                connection.close()
            os._exit(_wait(theirs))
        theirs.close()
        _Popen.spares.append((pid, ours))
    _PATCHES.enter_context(fork_server.instead_of_spawning(_Context()))


def _wait(connection: socket.socket) -> int:
    """Runs in a spare process: waits for what it is to be, does it, and returns the exit code."""
    try:
        child_r, _, tracker, *files = reduction.recvfds(connection, _MOST_FDS)
    except (EOFError, OSError):
        return 0
    connection.close()
    resource_tracker._resource_tracker._fd, forkserver._forkserver._inherited_fds = tracker, files
    with_spares(_SPARES_BELOW)
    return spawn._main(child_r, os.dup(child_r))
