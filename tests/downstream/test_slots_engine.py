"""A third party's quirks on an engine argument, a bound and a variable, applied and read back on the real engine."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import fork_server
import pytest
import pytest_asyncio

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def acme_slots(wheels: Callable[..., list[Path]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lays acme-slots, as pip would unpack it, where this process and the engine's find it."""
    site = tmp_path_factory.mktemp("site")
    (wheel,) = wheels("acme-slots")
    zipfile.ZipFile(wheel).extractall(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process less to wait for
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(acme_slots, tiny_checkpoint, quirk_engine):  # noqa: ARG001 - the plugins must be there first
    fork_server.start()
    with fork_server.instead_of_spawning():
        async with quirk_engine(tiny_checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as started:
            yield started


def test_every_process_reports_the_planned_engine_arguments(worker):
    reported = {ack.process: ack.engine for ack in worker.receipt.processes if ack.engine}

    assert [process for process in reported if "EngineCore" in process]
    assert {(engine["engine.block_size"], engine["engine.max_model_len"]) for engine in reported.values()} == {(32, 256)}


def test_every_process_acknowledges_the_variable(worker):
    acknowledged = {
        ack.process: [effect.after for effect in ack.effects if effect.slot == "env.NCCL_NVLS_ENABLE"]
        for ack in worker.receipt.processes
    }

    assert len(acknowledged) > 1
    assert set(map(tuple, acknowledged.values())) == {("0",)}


async def test_the_engine_generates(worker, quirk_lab, tiny_checkpoint):
    outcome = quirk_lab.same_tokens(await quirk_lab.greedy(worker), quirk_lab.reference(tiny_checkpoint("qwen3")))

    assert outcome.passed, outcome
