"""Where Ray puts a group's actors on two simulated nodes, and what goes along; no engine is started.

Everything happens in a process of its own, with a folder of its own for Ray: other tests have a Ray in this process.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile

import pytest
from patience import HUNG_S
from programs import run_python

pytestmark = pytest.mark.engine

_SCRIPT = """
import asyncio, json, os, signal, sys, time
from pathlib import Path

import psutil
import ray
from ray.cluster_utils import Cluster

from quirks_core.configuration.sections import ClusterSection
from worker.engine import processes
from worker.errors import RankError
from worker.group import ranks
from worker.group.actor import EngineActor


class Watched(EngineActor):
    async def environment(self):
        return dict(os.environ)


ranks.EngineActor = Watched


def group(address, **section):
    cluster = ClusterSection(address=address, start_timeout_s=section.pop("start_timeout_s", 600), **section)
    return ranks.Ranks(cluster, engines=2, gpus=2, environment={"NCCL_DEBUG": "INFO", "ACME_KEY": "1"})


async def placed(address, placement):
    made = group(address, placement=placement)
    await made.create()
    found = [
        {
            "number": rank.number, "node": rank.node,
            "environment": await rank.call("environment"),
        }
        for rank in made.all
    ]
    actors = processes.children(rank.pid for rank in made.all)
    os.kill(actors[0].pid, signal.SIGSTOP)
    await made.end(0)
    _, left = psutil.wait_procs(actors, timeout=float(sys.argv[2]))
    return {"ranks": found, "actors": [len(actors), len(left)], "connected": ray.is_initialized()}


async def no_room(address):
    made = group(address, start_timeout_s=1, cpus_per_engine=3)
    try:
        await made.create()
    except RankError as error:
        return str(error)
    finally:
        await made.end(0)


async def without(cluster, node, address):
    made = group(address, placement="spread")
    await made.create()
    before = [rank.node for rank in made.all]
    cluster.remove_node(node, allow_graceful=False)
    await made.end(0)
    await made.create()
    after = [rank.node for rank in made.all]
    await made.end(0)
    return {"before": before, "after": after}


def left(address):
    ray.init(address, configure_logging=False, log_to_driver=False)
    nodes = sum(node["Alive"] for node in ray.nodes())
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        time.sleep(0.1)  # given back a moment after the placement group
    ray.shutdown()
    return nodes


async def main():
    node = {"num_cpus": 2, "num_gpus": 4}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    other = cluster.add_node(**node, node_ip_address="127.0.0.2")
    cluster.wait_for_nodes()
    # After the nodes: these take over the environment of who starts them.
    os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_TOKEN="secret", MODEL_QUIRKS_PLAN="mine", ACME_OTHER="1")
    found = {"spread": await placed(cluster.address, "spread"), "no room": await no_room(cluster.address)}
    os.environ["RAY_ADDRESS"] = cluster.address
    found["pack"] = await placed(None, "pack")
    del os.environ["RAY_ADDRESS"]
    found["nodes left"] = left(cluster.address)
    found["lost"] = await without(cluster, other, cluster.address)
    cluster.shutdown()
    Path(sys.argv[1]).write_text(json.dumps(found))


asyncio.run(main())
"""
#: Ray takes a lost node for dead after a second, and starts no workers that nobody asked for.
_QUICK = {
    "RAY_enable_worker_prestart": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "2",
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """What the script saw on two nodes with two CPUs and four GPUs each, of which Ray only believes that they exist."""
    folder = tmp_path_factory.mktemp("cluster")
    script, found = folder / "script.py", folder / "found.json"
    script.write_text(_SCRIPT, encoding="utf-8")
    ray_folder = tempfile.mkdtemp(prefix="mq-", dir="/tmp")  # a socket's path has at most 107 bytes
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "VLLM_", "NCCL_", "HF_"))}
    try:
        done = run_python(script, found, HUNG_S, environ=clean, RAY_TMPDIR=ray_folder, **_QUICK)
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(found.read_text(encoding="utf-8"))


def test_the_placement_decides_whether_engines_share_a_node(simulated):
    assert {rank["node"] for rank in simulated["spread"]["ranks"]} > {"127.0.0.2"}
    assert [len({rank["node"] for rank in simulated[name]["ranks"]}) for name in ("spread", "pack")] == [2, 1]


def test_every_actor_sees_its_own_gpus_alone(simulated):
    devices = [rank["environment"]["CUDA_VISIBLE_DEVICES"].split(",") for rank in simulated["pack"]["ranks"]]

    assert [len(item) for item in devices] == [2, 2]
    assert not {*devices[0]} & {*devices[1]}


def test_what_the_plan_is_made_of_goes_along_but_nothing_private(simulated):
    for rank in simulated["spread"]["ranks"]:
        assert rank["environment"].keys() >= {"VLLM_LOGGING_LEVEL", "NCCL_DEBUG"}
        assert not rank["environment"].keys() & {"HF_TOKEN", "MODEL_QUIRKS_PLAN", "ACME_OTHER", "ACME_KEY"}


def test_no_actor_outlives_its_group_on_any_node(simulated):
    """Ray kills also one that was stopped (SIGSTOP)."""
    for placement in ("spread", "pack"):
        assert simulated[placement]["actors"] == [2, 0]


def test_missing_room_is_an_error_that_says_what_is_free(simulated):
    message = simulated["no room"]

    assert "Ray did not start 2 engines with {'CPU': 3.0, 'GPU': 2.0} each" in message
    assert "cluster.start_timeout_s = 1 s" in message
    assert "free are {'CPU': 4.0, 'GPU': 8.0}" in message.replace("'GPU': 8.0, 'CPU': 4.0", "'CPU': 4.0, 'GPU': 8.0")
    assert "Lower cluster.cpus_per_engine" in message


def test_a_running_cluster_that_is_joined_is_left_as_it_was(simulated):
    """Joined by the configuration or by the environment."""
    assert not any(simulated[placement]["connected"] for placement in ("spread", "pack"))
    assert simulated["nodes left"] == 2


def test_engines_of_a_lost_node_get_new_places(simulated):
    before, after = simulated["lost"]["before"], simulated["lost"]["after"]

    assert len(set(before)) == 2
    assert set(after) == set(before) - {"127.0.0.2"}
