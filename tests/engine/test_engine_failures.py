"""Engines that die: the error says why, names the quirks that set what it names, and nothing is left running."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time

import psutil
import pytest
from programs import children, run_python

from quirks_core.apply import process
from quirks_core.base.errors import ReceiptError, UsageError
from worker import VllmAsyncGenerationWorker
from worker.engine import engine
from worker.errors import EngineStartError


async def test_an_engine_that_dies_at_start_says_why_without_leftovers(checkpoint, running, tmp_path):
    model = tmp_path / "broken"
    shutil.copytree(checkpoint("qwen3"), model)
    (model / "model.safetensors").write_bytes(b"these are no weights")
    before = children()

    with pytest.raises(EngineStartError) as caught:
        async with running(model, {"engine": {"load_format": "auto", "distributed_executor_backend": "mp"}}):
            pass

    assert "safetensor" in str(caught.value).lower()
    assert "VllmWorker-0" in str(caught.value)
    assert [note.partition(" (")[0] for note in caught.value.__notes__] == ["no quirk changed anything that this error names"]
    assert children() <= before
    assert "MODEL_QUIRKS_PLAN" not in os.environ


async def test_an_engine_without_our_plugin_does_not_start(checkpoint, running, monkeypatch):
    with_ours = engine._set_variables

    def without_ours(folder):
        with_ours(folder)
        process.environment.set("VLLM_PLUGINS", "")  # after the check of the environment

    monkeypatch.setattr(engine, "_set_variables", without_ours)

    with pytest.raises(ReceiptError, match="no engine on this machine has put plan"):
        async with running(checkpoint("qwen3"), {"purpose": "eval", "engine": {"load_format": "auto"}}):
            pass


async def test_shutdown_removes_only_what_the_engine_brought(checkpoint, running):
    before = dict(os.environ)
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), name="dataloader")
    starting = threading.Timer(0.2, other.start)  # while the engine starts
    starting.start()
    async with running(checkpoint("qwen3")) as started:
        starting.join()
        pids = [ack.pid for ack in started.receipt.processes if ack.pid != os.getpid()]
        assert "MODEL_QUIRKS_PLAN" in os.environ

    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert other.pid not in pids
    assert other.is_alive()
    other.kill()
    changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
    assert not [name for name in changed if name.startswith("MODEL_QUIRKS_")]


#: In a process of its own, because what vLLM leaves in a closed loop makes noise there.
CLOSED_LOOP = """
import asyncio, sys
from programs import children
from worker import VllmAsyncGenerationWorker
from worker.lab.kit.lab import configuration

if __name__ == "__main__":
    worker, loop = VllmAsyncGenerationWorker(configuration(sys.argv[1])), asyncio.new_event_loop()
    loop.run_until_complete(worker.post_init_async())
    loop.close()
    engine = children()
    asyncio.run(worker.shutdown())
    print(len(engine) > 0, children() & engine)
"""


def test_an_engine_stops_whose_event_loop_was_closed(checkpoint, tmp_path):
    script = tmp_path / "closed_loop.py"
    script.write_text(CLOSED_LOOP, encoding="utf-8")

    done = run_python(script, checkpoint("qwen3"))

    assert done.stdout.splitlines()[-1:] == ["True set()"], done.stderr


def test_a_folder_without_weights_is_refused(checkpoint, tmp_path):
    """That is so before any engine starts."""
    shutil.copy(checkpoint("qwen3") / "config.json", tmp_path)

    with pytest.raises(UsageError, match="has no weights"):
        VllmAsyncGenerationWorker({"model": str(tmp_path), "purpose": "serve"})
