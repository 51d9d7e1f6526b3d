"""What goes along to an engine, and which Ray it joins; none is started."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
import ray

from quirks_core.configuration.sections import ClusterSection
from worker.errors import RankError
from worker.group.ranks import Ranks, travelling

#: What a plan or an engine reads, and switches.
_GOES = "VLLM_LOGGING_LEVEL NCCL_DEBUG NRL_VLLM_ASYNC_TIMEOUT_SECONDS HF_HOME TORCHDYNAMO_DISABLE OMP_NUM_THREADS"
_GOES += " MODEL_QUIRKS_DISABLE MODEL_QUIRKS_STRICT MODEL_QUIRKS_LOCKED"
#: Secrets, a plan that is in force here, and what belongs to this machine.
_STAYS = "HF_TOKEN VLLM_API_KEY NRL_SECRET HF_PASSWORD VLLM_SECRET_KEY MODEL_QUIRKS_PLAN MODEL_QUIRKS_FOLDER"
_STAYS += " PATH HOME CUDA_VISIBLE_DEVICES RAY_ADDRESS TMPDIR LD_PRELOAD"


def test_only_what_an_engine_elsewhere_may_read_goes_along():
    here = dict.fromkeys([*_GOES.split(), *_STAYS.split()], "1")

    assert travelling(here) == dict.fromkeys(_GOES.split(), "1")


@pytest.fixture
def joined(monkeypatch):
    """Connects, and returns what Ray was asked for: one is started by tests of real groups."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = []
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append((address, options.get("num_cpus"))))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    async def connect(**section):
        await Ranks(ClusterSection(**section), engines=70, gpus=0, environment={})._connect()
        return asked.pop()

    return connect


async def test_a_ray_of_our_own_has_room_for_all(joined):
    """Left open, Ray joins the cluster that was started last on this machine."""
    assert await joined() == ("local", max(70, os.cpu_count()))
    assert await joined(cpus_per_engine=1.01) == ("local", max(71, os.cpu_count()))


async def test_the_configured_address_wins_over_the_environment(joined, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")

    assert await joined() == ("auto", None)
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:  # as Ray's head
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await joined(address=address) == (address, None)


async def test_a_cluster_that_does_not_answer_is_named_at_once(joined):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    with pytest.raises(RankError, match=rf"the Ray cluster at '{address}' \(cluster\.address\) cannot be reached"):
        await joined(address=address)
