"""Groups of engines on Ray, on two CPU cores; one Ray for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import fork_server
import psutil
import pytest
import ray

from worker import WorkerGroup
from worker.lab.kit.lab import batch_of, configuration


@pytest.fixture(scope="package", autouse=True)
def own_ray():
    """Groups use a Ray that runs already, and leave it running; its workers have imported vLLM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTS_FORK_SERVER", fork_server.address())
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="package")
def grouped(lean):
    """Makes a group with small engines, starts it, and shuts it down whatever happens; one with `own_workers` as vLLM does."""

    @asynccontextmanager
    async def start(model, values, *, own_workers=False, **options) -> AsyncIterator[WorkerGroup]:
        # By itself vLLM wants a NUMA node for each rank.
        values = {"purpose": "eval", **values, "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", **values.get("env", {})}}
        if not own_workers:
            values = lean(values)
        async with WorkerGroup(configuration(model, values), **options) as group:
            yield group

    return start


@pytest.fixture(scope="package")
def tokens():
    """Generates from prompts and returns the new tokens of each, in order."""

    async def generate(group, prompts, *, greedy=True, rank=None, **more):
        found = {}
        async for index, output in group.generate_async({**batch_of(prompts), **more}, greedy=greedy, data_parallel_rank=rank):
            found[index] = tuple(output["output_ids"][0, len(prompts[index]) :].tolist())
        return [found[index] for index in range(len(prompts))]

    return generate


@pytest.fixture(scope="package")
def of_group():
    """The processes of a group: its actors, and by actor the engine's."""

    def find(group):
        actors = [psutil.Process(rank.pid) for rank in group._ranks.all]
        return SimpleNamespace(actors=actors, engines=[actor.children(recursive=True) for actor in actors])

    return find
