"""Tensor parallelism over two processes, with a third party's patch: every process acknowledges, or the run stops."""

from __future__ import annotations

import asyncio

import psutil
import pytest
import pytest_asyncio
from programs import children

from quirks_core.source.vllm_source import INSTALLED
from worker.errors import EngineDiedError, EngineStartError, TransferError
from worker.refit.engine import receiving

_TARGET = "vllm.v1.worker.cpu_worker:CPUWorker.init_device"

#: Two quirks on one target. The second wrapper raises, and only where a worker puts it on.
_MODULE = """
import functools
import multiprocessing
import time

from quirks_core import Fact, ModelFlag, Patch, Quirk, Severity, hookimpl, report


def quirk(name, recipe):
    return Quirk(
        id=f"acme-workers/{name}",
        title="a patch of a worker's method",
        flag=ModelFlag.ENVIRONMENT,
        match=Fact("recipe").one_of(*recipe),
        adjustments=Patch(TARGET, wrapper=f"acme_workers:{name}", expects=(EXPECTS,)),
        severity=Severity.NOISE,
        references=report("https://example.org/1"),
    )


def passes(original):
    @functools.wraps(original)
    def init_device(self):
        self.answer = functools.partial(answer, self)
        return original(self)

    return init_device


def answer(worker, number, *, failing=None, slow=None):
    if worker.rank == failing:
        raise RuntimeError(f"rank {failing} fails")
    if worker.rank == slow:
        time.sleep(2)
    return [number, worker.rank]


def fails(original):
    if "VllmWorker" in multiprocessing.current_process().name:
        raise RuntimeError("the wrapper fails in workers only")
    return original


@hookimpl
def quirks_declare():
    return [quirk("passes", ["good", "bad"]), quirk("fails", ["bad"])]
"""

# One thread each: without it, vLLM's CPU build wants a NUMA node per rank.
_TWO_RANKS = {
    "engine": {"tensor_parallel_size": 2, "load_format": "auto"},
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
}


@pytest.fixture(scope="module", autouse=True)
def installed(third_party):
    """Installs both quirks."""
    source = f"TARGET = {_TARGET!r}\nEXPECTS = {INSTALLED.fingerprint(_TARGET)!r}\n{_MODULE}"
    with third_party("acme_workers", {"workers": "acme_workers"}, source):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(checkpoint, running):
    async with running(checkpoint("qwen3"), {**_TWO_RANKS, "recipe": "good"}) as started:
        yield started


def test_every_process_acknowledges_the_same_digest(worker):
    """The receipt says what each worker runs with."""
    acknowledged = {ack.process: ack.digest for ack in worker.receipt.processes}

    names = ["MainProcess", "EngineCore", "EngineCore/VllmWorker-0", "EngineCore/VllmWorker-1"]
    assert acknowledged == dict.fromkeys(names, worker.plan.digest)
    for ack in [ack for ack in worker.receipt.processes if "VllmWorker" in ack.process]:
        [effect] = [effect for effect in ack.effects if effect.slot == f"patch.{_TARGET}"]
        assert (effect.before, effect.after) == (INSTALLED.fingerprint(_TARGET), "acme_workers:passes")
        assert not effect.pending
        assert (ack.engine["engine.tensor_parallel_size"], ack.engine["engine.enforce_eager"]) == (2, True)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("failing", "rank {} fails"), ("slow", "timed out")],
)
@pytest.mark.parametrize("rank", [0, 1])
async def test_ranks_reply_to_the_call_itself_after_a_failed_one(worker, fault, error, rank):
    llm = worker.engine.llm
    with pytest.raises(Exception, match=error.format(rank)):
        await llm.collective_rpc("answer", args=(0,), kwargs={fault: rank}, timeout=1 if fault == "slow" else None)

    assert [await llm.collective_rpc("answer", args=(number,)) for number in (1, 2)] == [[[1, 0], [1, 1]], [[2, 0], [2, 1]]]


async def test_a_rejected_refit_leaves_answers_in_their_places(worker):
    """Of ranks that raise, vLLM hears the first alone, and takes what the others said for answers to its next question."""
    nowhere = {"transport": "collective"}

    for _ in range(2):
        with pytest.raises(TransferError, match="no group"):
            await worker.engine.call(receiving.take, nowhere)

    assert await worker.engine.call(receiving.rank) == [0, 1]
    assert await worker.engine.call(receiving.touched) == [False, False]


async def test_an_engine_without_a_process_is_dead(worker):
    """Of a worker that was killed, the engine core says that the call was cancelled before it says that all is over."""
    found = {ack.process: psutil.Process(ack.pid) for ack in worker.receipt.processes}
    core, killed = found["EngineCore"], found["EngineCore/VllmWorker-1"]
    core.suspend()  # it cannot say anything
    try:
        killed.kill()
        while killed.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110 - a moment
            await asyncio.sleep(0.01)

        with pytest.raises(EngineDiedError, match="one of its workers ended"):
            async with worker.engine.watched():
                raise RuntimeError("Call to collective_rpc method failed: cancelled")
    finally:
        core.resume()


async def test_a_plugin_that_fails_in_a_worker_only_is_named(worker, checkpoint, running):
    await worker.shutdown()  # one plan per process: the good engine makes room for the next
    before = children()

    with pytest.raises(EngineStartError) as caught:
        async with running(checkpoint("qwen3"), {**_TWO_RANKS, "recipe": "bad"}):
            pass

    assert "VllmWorker" in str(caught.value)
    assert "the wrapper fails in workers only" in str(caught.value)
    (note,) = caught.value.__notes__
    assert note.startswith("quirk acme-workers/fails (")
    assert note.endswith("and its code was running; to run without it: --disable acme-workers/fails")
    assert children() <= before
