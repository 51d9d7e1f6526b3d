"""Ranks that never come up, and drivers that are killed: an error with the rank's name, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from patience import HUNG_S, until

from quirks_core.hook.in_force import RUNS
from worker import WorkerGroup
from worker.engine.engine import remove_leftovers
from worker.errors import RankError
from worker.group.ranks import Ranks
from worker.lab.kit.lab import configuration

_MOE = {
    "purpose": "eval",
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    "engine": {"data_parallel_size": 2},
    "parallel": {"dp_strategy": "actors"},
}

#: A driver with a Ray of its own and one engine; kills Ray's node, brings all back, and waits.
_DRIVER = """
import asyncio, json, sys
import psutil
from worker.lab.kit.lab import PROMPTS, batch_of, set_environment

set_environment()

async def tokens(group):
    found = [item async for item in group.generate_async(batch_of(PROMPTS), greedy=True)]
    return [output["output_ids"][0, len(PROMPTS[index]):].tolist() for index, output in sorted(found, key=lambda item: item[0])]

def pids(group):
    return [one.pid for receipt in group.receipts for one in receipt.processes]

async def main():
    from worker import WorkerGroup
    from worker.errors import RankError

    _, values, limit = sys.argv
    async with WorkerGroup(json.loads(values)) as group:
        engines = [psutil.Process(pid) for pid in pids(group)]
        next(process for process in psutil.Process().children(recursive=True) if process.name() == "raylet").kill()
        while True:
            try:
                await tokens(group)
            except RankError as error:
                said = str(error)
                break
        problem = (await group.health())[0]["problem"]
        await group.restart()
        _, left = psutil.wait_procs(engines, timeout=float(limit))
        found = {"said": said, "problem": problem, "engines": [len(engines), len(left)], "tokens": await tokens(group)}
        print(json.dumps({**found, "pids": pids(group)}), flush=True)
        await asyncio.sleep(3600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def place():
    """Where the driver and its engines put temporary files; a short path, because Ray has sockets there."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def driver(checkpoint, lean, tmp_path_factory, place):
    """A driver in a process of its own that has lost Ray, generates again and waits; what it said of each loss."""
    folder = tmp_path_factory.mktemp("driver")
    script, errors = folder / "driver.py", folder / "errors.txt"
    script.write_text(_DRIVER)
    command = [sys.executable, script, json.dumps(configuration(checkpoint("qwen3"), lean({"purpose": "eval"})))]
    command += [str(HUNG_S)]
    environment = {**os.environ, "TMPDIR": str(place)}
    with errors.open("w") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True, env=environment)
    said = next((line for line in process.stdout if line.startswith("{")), None)
    assert said, errors.read_text()[-3000:]
    yield process, json.loads(said)
    process.kill()
    process.communicate()


def test_a_group_that_lost_its_node_goes_on_after_a_restart(driver, checkpoint, lab):
    _, said = driver

    assert re.search("rank 0: its actor .* died", said["said"])
    assert re.search("rank 0: its actor .* died", said["problem"])
    assert said["engines"] == [2, 0]  # an actor and an engine core
    assert said["tokens"] == [list(row.tokens) for row in lab.reference(checkpoint("qwen3"))]


def test_nothing_of_a_killed_driver_outlives_the_next_start(driver, place, monkeypatch):
    process, found = driver
    engines = [psutil.Process(pid) for pid in found["pids"]]
    assert len(engines) == 2

    process.send_signal(signal.SIGKILL)

    _, left = psutil.wait_procs(engines, timeout=HUNG_S)
    assert left == []
    assert list(place.glob(f"{RUNS}*"))

    monkeypatch.setattr(tempfile, "tempdir", str(place))
    remove_leftovers()

    left = {path.name for path in place.iterdir() if not path.name.startswith("vllm_dist_")}  # vLLM's own, as it is
    assert left == {"ray"}  # and Ray's


def engines_folders():
    return set(Path(tempfile.gettempdir()).glob(f"{RUNS}*"))


async def refused(group, match):
    """Starts a group that does not come up; returns the error."""
    with pytest.raises(RankError, match=match) as caught:
        await group.start()
    return str(caught.value)


async def test_a_rank_that_never_comes_up_is_named_without_leftovers(checkpoint, lean, monkeypatch):
    group = WorkerGroup(configuration(checkpoint("qwen3_moe"), lean(_MOE)))
    folders = engines_folders()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    create = Ranks.create

    async def and_one_hangs(them):
        """The actors come up at their leisure; one of them hangs from then on, and the engines' time is short."""
        await create(them)
        os.kill(them.all[1].pid, signal.SIGSTOP)
        short = group.config.cluster.model_copy(update={"start_timeout_s": 5.0})
        group.config = group.config.model_copy(update={"cluster": short})

    monkeypatch.setattr(Ranks, "create", and_one_hangs)
    said = await refused(group, r"rank 1 did not start within cluster\.start_timeout_s = 5 s")

    assert said.startswith("the group did not start: rank 0 did not start within")

    def is_over():
        return not [one for one in psutil.Process().children(recursive=True) if one.pid not in before and _is_ours(one)]

    until(is_over, "the end of the actors and engines that were started")
    remove_leftovers()
    assert engines_folders() <= folders


async def test_a_node_with_another_plan_is_refused(checkpoint, lean, monkeypatch):
    group = WorkerGroup(configuration(checkpoint("qwen3_moe"), lean(_MOE)))
    monkeypatch.setattr("worker.group.group.plan_variables", lambda *_: {"VLLM_USE_V1": "1"})

    said = await refused(group, r"rank [01]: this node's plan differs from the driver's")

    assert "VLLM_USE_V1 is None there and '1' here" in said
    assert group._ranks.all == ()


def _is_ours(process: psutil.Process) -> bool:
    """An engine's process, or the actor that holds it; both may be forked."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(name in command for name in ("EngineActor", "VLLM", "multiprocessing.spawn", "multiprocessing.forkserver"))
