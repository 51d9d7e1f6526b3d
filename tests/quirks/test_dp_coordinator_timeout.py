"""The coordinator of a data-parallel group gets as long to start as its engines."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace

import pytest

from quirks_plugins.timeout.dp_coordinator_patches import wrap_wait_for_addresses


@pytest.mark.parametrize(("size", "patched"), [(2, ["DPCoordinator._wait_for_zmq_addrs"]), (1, [])])
def test_only_a_group_is_patched(plan_for, size, patched):
    typed = {"engine.data_parallel_size": size}

    assert plan_for({"model_type": "qwen3_moe", "num_experts": 8}, typed, assume=["vllm==0.32.0"]).patched == patched


def test_what_has_come_is_taken_at_once_by_vllms_own_function():
    (received, sent), (alive, _) = multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False)
    sent.send("addresses")

    wait = wrap_wait_for_addresses(lambda _self, pipe: pipe.recv())

    assert wait(SimpleNamespace(proc=SimpleNamespace(sentinel=alive.fileno())), received) == "addresses"
