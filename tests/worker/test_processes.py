"""The engine's processes and those of others, told apart, ended and missed; and an engine that does not begin to start."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time

import psutil
import pytest

from quirks_core.apply.process import acknowledgement
from quirks_core.base import private_folder
from quirks_core.plugins.planning import make_plan
from worker import GenerationConfig
from worker.engine import processes
from worker.engine.engine import Engine

_SLEEP = "import time; print('ready', flush=True); time.sleep(60)"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SLEEP}"


@pytest.fixture
def start(start):
    """Starts a Python program and waits until it runs."""

    def run(code):
        child = start(code)
        assert child.stdout.readline() == "ready\n"
        return psutil.Process(child.pid)

    return run


@pytest.fixture
def named():
    """Starts a child with a name in another thread, as Python's multiprocessing does; ends it after the test."""
    started = []

    def run(name):
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), name=name)
        thread = threading.Thread(target=child.start)
        thread.start()
        thread.join()
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.join()


@pytest.mark.parametrize("code", [_SLEEP, _STUBBORN], ids=["willing", "stubborn"])
def test_a_process_that_was_ended_is_missed_even_if_it_resists(start, code):
    child, other = start(code), start(_SLEEP)
    assert processes.all_run([child, other])

    processes.end([child], timeout_s=1.0)

    assert not processes.all_run([child, other])
    assert processes.all_run([other])


def test_children_of_other_threads_are_not_the_engine_s(start, named):
    before = multiprocessing.active_children()
    start(_SLEEP)
    named("dataloader")
    core = named("EngineCore_DP0")

    assert processes.started(before) == [core]
    assert {process.pid for process in processes.engine_processes(before)} == {core.pid}


def test_a_child_that_has_ended_is_none_of_the_next_engines(named):
    before = multiprocessing.active_children()
    core = named("EngineCore")
    processes.end(processes.engine_processes(before))

    before = multiprocessing.active_children()
    assert core in before, "psutil has asked first"
    assert processes.started(before) == []


@pytest.mark.usefixtures("shell")
async def test_a_failed_start_leaves_nothing_nor_do_killed_runs(model, tmp_path, monkeypatch):
    plan = make_plan(GenerationConfig.parse({"model": str(model())}))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for prefix in ("model-quirks-", "mq-"):
        private_folder.remove(lasting := private_folder.make(prefix))
        lasting.mkdir()
        (lasting / ".owner").touch()  # nobody holds it
    before = dict(os.environ)

    with pytest.raises(ValueError, match="illegal environment variable name"):
        await Engine(plan, {}, {"ACME": "1", "A=B": "2"}).start()

    assert dict(os.environ) == before
    assert acknowledgement().digest == ""

    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("model-quirks-", "mq"))] == []
