"""Processes end, those of others live on, and an engine that cannot be found is no engine in order."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from quirks_core import ReceiptError
from worker import processes

_SLEEP = "import time; print('ready', flush=True); time.sleep(60)"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SLEEP}"


@pytest.fixture
def start():
    """Starts a Python program and waits until it runs; ends it after the test."""
    started = []

    def run(code):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "ready\n"
        return psutil.Process(child.pid)

    yield run
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_process_that_was_started_is_a_descendant(start):
    before = processes.descendants()

    child = start(_SLEEP)

    assert processes.descendants() - before == {child}


@pytest.mark.parametrize("code", [_SLEEP, _STUBBORN], ids=["willing", "stubborn"])
def test_a_process_ends_the_hard_way_if_need_be(start, code):
    child = start(code)

    processes.end([child], timeout_s=1.0)

    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_is_gone_already_counts_as_ended(start):
    child = start(_SLEEP)
    child.kill()
    child.wait()

    begun = time.monotonic()
    processes.end([child], timeout_s=5.0)

    assert time.monotonic() - begun < 5.0


def test_the_trainers_own_processes_are_none_of_the_engines(start):
    start(_SLEEP)

    assert processes.engine_processes(before=()) == frozenset()


def test_an_engine_whose_processes_are_not_found_is_an_error():
    with pytest.raises(ReceiptError, match="were not found"):
        processes.expected_to_acknowledge(before=[psutil.Process(os.getpid())])
