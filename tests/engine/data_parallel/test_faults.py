"""Ranks that never come up, and drivers that are killed: an error with the rank's name, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from worker import WorkerGroup
from worker.errors import RankError
from worker.testing.lab import configuration

#: Seconds after which something has hung.
HUNG_S = 60

pytestmark = pytest.mark.timeout(400)

_MOE = {
    "purpose": "eval",
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    "engine": {"data_parallel_size": 2},
    "parallel": {"dp_strategy": "actors"},
}

#: A driver with a Ray of its own; MoE over two ranks without expert parallelism.
_DRIVER = """
import asyncio, json, sys
from worker.testing.lab import PROMPTS, batch_of, set_environment

set_environment()

async def main():
    from worker import WorkerGroup

    async with WorkerGroup(json.loads(sys.argv[1])) as group:
        found = {}
        async for index, output in group.generate_async(batch_of(PROMPTS), greedy=True):
            found[index] = output["output_ids"][0, len(PROMPTS[index]):].tolist()
        rows = [[row.dp_rank, row.dp_size, row.ep_rank, len(next(iter(row.experts.values())))] for row in group.topology.rows]
        print(json.dumps({"tokens": [found[index] for index in range(len(PROMPTS))], "rows": rows}), flush=True)
        await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def driver(checkpoint, tmp_path_factory):
    """A driver in a process of its own that has generated and waits; what it said."""
    script = tmp_path_factory.mktemp("driver") / "driver.py"
    script.write_text(_DRIVER)
    config = json.dumps(configuration(checkpoint("qwen3_moe"), _MOE))
    process = subprocess.Popen([sys.executable, str(script), config], stdout=subprocess.PIPE, text=True)
    lines = iter(process.stdout.readline, "")
    said = json.loads(next(line for line in lines if line.startswith("{")))
    yield process, said
    process.kill()
    process.communicate()


def test_moe_over_two_ranks_without_expert_parallelism_generates_what_one_engine_does(driver, lab, checkpoint):
    _, said = driver

    assert said["tokens"] == [list(row.tokens) for row in lab.reference(checkpoint("qwen3_moe"))]
    assert said["rows"] == [[0, 2, None, 8], [1, 2, None, 8]]  # every rank has a part of every expert


def test_a_driver_that_is_killed_leaves_no_engine_behind(driver):
    process, _ = driver
    engines = [child for child in psutil.Process(process.pid).children(recursive=True) if _is_ours(child)]
    assert len(engines) == 7  # two actors, engine cores and workers, and one coordinator

    process.send_signal(signal.SIGKILL)

    _, left = psutil.wait_procs(engines, timeout=60)
    assert left == []


async def test_a_rank_that_never_comes_up_is_named_with_its_last_lines_and_nothing_is_left(checkpoint):
    limit_s = 5
    group = WorkerGroup(configuration(checkpoint("qwen3_moe"), {**_MOE, "cluster": {"start_timeout_s": limit_s}}))
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    starting = asyncio.ensure_future(group.start())
    while len(group._ranks.all) < 2 or not all(rank.pid for rank in group._ranks.all):  # noqa: ASYNC110 - nor does a start
        await asyncio.sleep(0.02)
    ranks = group._ranks.all
    os.kill(ranks[1].pid, signal.SIGSTOP)

    async with asyncio.timeout(HUNG_S):
        with pytest.raises(RankError, match=rf"rank 1 is not up within cluster\.start_timeout_s = {limit_s} s") as caught:
            await starting

    assert str(caught.value).startswith("the group did not start: rank 0 is not up")
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert [process for process in left if _is_ours(process)] == []
    assert not any(map(os.path.exists, (rank.folder for rank in ranks)))


async def test_a_node_that_comes_to_another_plan_is_refused_with_what_differs(checkpoint, monkeypatch):
    group = WorkerGroup(configuration(checkpoint("qwen3_moe"), _MOE))
    monkeypatch.setattr("worker.group.group.plan_variables", lambda *_: {"VLLM_USE_V1": "1"})

    async with asyncio.timeout(HUNG_S):
        with pytest.raises(RankError, match=r"rank [01]: this node comes to another plan than the driver") as caught:
            await group.start()

    assert "VLLM_USE_V1 is None there and '1' here" in str(caught.value)
    assert group._ranks.all == ()


def _is_ours(process: psutil.Process) -> bool:
    """An engine's process, or the actor that holds it."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(name in command for name in ("EngineActor", "VLLM", "multiprocessing.spawn"))
