"""Commands in process groups of their own, and processes of engines: how they end, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from patience import HUNG_S, until

from quirks_core.apply.parent_watchdog import end_with_parent
from quirks_core.base import child_process

#: Starts a child, writes both process ids to a file, and then does what the second argument says.
_FAMILY = """
import json, os, signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
with open(sys.argv[1] + ".part", "w") as file:
    json.dump([os.getpid(), child.pid], file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
exec(sys.argv[2])
"""
_HANGS = "time.sleep(600)"


@pytest.fixture
def family(tmp_path):
    """A command that starts a child, and a way to wait for the two processes."""
    file = tmp_path / "pids"

    def command(then: str) -> list[str]:
        return [sys.executable, "-c", _FAMILY, str(file), then]

    def pids() -> list[int]:
        until(file.exists, "the start of the command and its child")
        return json.loads(file.read_text(encoding="utf-8"))

    return command, pids


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def gone(pids: list[int]) -> None:
    until(lambda: not any(map(runs, pids)), "the end of the command and its child")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_has_its_own_environment_output_and_status(tmp_path):
    """Its standard input is empty."""
    code = "import os, sys; print(os.environ['ACME'] + sys.stdin.read(), 'b', sep='\\n', flush=True); sys.exit('c')"
    lines: list[str] = []

    status = child_process.run(python(code), environ={"ACME": "a"}, output=lines.append)
    with (tmp_path / "log").open("wb") as file:
        child_process.run(python(code), environ={"ACME": "a"}, output=file)

    assert status == 1
    assert lines == (tmp_path / "log").read_text(encoding="utf-8").splitlines() == ["a", "b", "c"]


@pytest.mark.parametrize(("then", "status"), [(_HANGS, None), ("", 0)], ids=["takes too long", "leaves a process"])
def test_all_processes_of_a_command_are_ended(family, then, status):
    command, pids = family

    assert child_process.run(command(then), limit_s=3, grace_s=0.2) == status

    gone(pids())


def test_a_command_is_asked_before_it_is_killed():
    cleans_up = "import time\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('cleaned up')"
    lines: list[str] = []

    child_process.run(python(cleans_up), limit_s=12, ask=signal.SIGINT, output=lines.append)

    assert lines == ["cleaned up"]


def test_an_error_in_this_process_ends_the_command_too(family):
    """Ctrl-C, say."""
    command, pids = family
    threading.Thread(target=lambda: (pids(), os.kill(os.getpid(), signal.SIGINT))).start()

    with pytest.raises(KeyboardInterrupt):
        child_process.run(command(_HANGS), grace_s=0.2)

    gone(pids())


def test_a_command_does_not_outlive_a_process_that_is_killed(family):
    command, pids = family
    caller = "import sys; from quirks_core.base import child_process; child_process.run(sys.argv[1:])"
    process = subprocess.Popen([*python(caller), *command(_HANGS)], cwd=Path(child_process.__file__).parents[2])
    found = pids()

    process.kill()
    process.wait()

    until(lambda: not runs(found[0]), "the end of the command")
    os.kill(found[1], signal.SIGKILL)


def test_a_command_starts_whatever_threads_of_this_process_hold():
    """Python code between fork and exec would wait for a lock whose holder the fork does not have."""
    caller = """if True:
    import os, threading
    from quirks_core.base import child_process
    held = threading.Lock()
    held.acquire()
    os.register_at_fork(after_in_child=held.acquire)
    raise SystemExit(child_process.run(["true"]))
    """

    done = subprocess.run(python(caller), cwd=Path(child_process.__file__).parents[2], timeout=HUNG_S, check=False)

    assert done.returncode == 0


def test_commands_that_threads_wait_for_end_together(family):
    command, pids = family
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(child_process.run, command(_HANGS), grace_s=0.2)
        members = pids()
        child_process.end_all()

        assert waiting.result(timeout=HUNG_S) == -signal.SIGTERM
    gone(members)


_PARENT = """
import multiprocessing, os, time
from quirks_core.apply.parent_watchdog import end_with_parent

def child():
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(600)

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
"""


def test_a_child_ends_when_its_parent_is_killed():
    parent = subprocess.Popen(python(_PARENT), stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))

    parent.kill()
    parent.communicate()

    child.wait(timeout=HUNG_S)


def test_a_process_that_a_user_started_is_let_alone():
    before = threading.enumerate()

    end_with_parent()

    assert threading.enumerate() == before
