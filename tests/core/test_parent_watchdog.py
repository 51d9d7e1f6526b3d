"""Processes of engines end with whoever started them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import psutil
from patience import HUNG_S

from quirks_core.apply.parent_watchdog import end_with_parent

_PARENT = """
import multiprocessing, sys, time
from quirks_core.apply.parent_watchdog import end_with_parent
from patience import HUNG_S

def child(pipe):
    end_with_parent()
    pipe.send(None)
    time.sleep(600)

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(there,))
    process.start()
    here.recv()
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()

    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    child.wait(timeout=HUNG_S)


def test_a_process_that_a_user_started_is_let_alone():
    before = threading.enumerate()

    end_with_parent()

    assert threading.enumerate() == before
