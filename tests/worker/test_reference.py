"""The calls of NeMo RL's asynchronous vLLM worker and of its driver, as recorded at 7ea279abf, and what answers them here."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worker import VllmAsyncGenerationWorker, WorkerGroup
from worker.batch import collate, routed_experts, sample
from worker.engine import vllm_adapter
from worker.errors import BatchError
from worker.metrics import EngineMetrics

#: Their call and its parameters after self; all but the property are functions.
WORKER = {
    "__init__": "config, bundle_indices=None, fraction_of_gpus=1.0, seed=None, extra_env_vars=None, defer_model_load=False",
    "configure_worker": "num_gpus, bundle_indices=None, num_gpus_per_node=None",
    "is_alive": "",
    "load_model": "",
    "post_init_async": "",
    "get_reserved_url": "",
    "report_dp_openai_server_base_url": "",
    "report_refit_server_base_url": "",
    "report_device_id_async": "",
    "generate_async": "data, greedy=False",
    "generate_text_async": "data, greedy=False",
    "init_collective_async": "rank_prefix, ip, port, world_size, train_world_size",
    "prepare_refit_info_async": "state_dict_info",
    "update_weights_via_ipc_zmq_async": "",
    "update_weights_from_collective_async": "",
    "init_nccl_reshard_comm_group_async": "rank_prefix, pp_ips, pp_ports, pp_size, train_ranks_per_stage, sub_world_size",
    "prepare_nccl_reshard_refit_info_async": "refit_info",
    "nccl_reshard_refit_async": "",
    "reset_prefix_cache_async": "",
    "sleep_async": "",
    "wake_up_async": "**kwargs",
    "shutdown": "",
    "start_gpu_profiling": "",
    "stop_gpu_profiling": "",
    "get_vllm_logger_metrics": "",
    "clear_vllm_logger_metrics": "",
    "_start_vllm_metrics_logger": "",
    "_get_raw_spec_counters": "",
    "_return_routed_experts_enabled": "",
    "_create_engine": "llm_kwargs",
    "_setup_vllm_openai_api_server": "app",
}
GROUP = {
    "prepare_for_generation": "*args, **kwargs",
    "finish_generation": "*args, **kwargs",
    "invalidate_kv_cache": "",
    "requires_kv_scale_sync": "",
}
#: Generators there and here.
GENERATORS = {"generate_async", "generate_text_async"}
#: Functions there whose answer needs no engine; all others are coroutines here, which Ray awaits.
PLAIN = {
    "__init__", "configure_worker", "is_alive", "report_refit_server_base_url", "get_vllm_logger_metrics",
    "clear_vllm_logger_metrics", "_start_vllm_metrics_logger", "_get_raw_spec_counters", "_return_routed_experts_enabled",
    "_setup_vllm_openai_api_server", "requires_kv_scale_sync",
}  # fmt: skip
CALLS = [(kind, *call) for kind, calls in ((VllmAsyncGenerationWorker, WORKER), (WorkerGroup, GROUP)) for call in calls.items()]


@pytest.mark.parametrize(("kind", "name", "asked"), CALLS, ids=[name for _, name, _ in CALLS])
def test_every_call_of_theirs_can_be_made_here(kind, name, asked):
    """Names, order, kinds and defaults of the parameters are theirs; further ones and further defaults are ours."""
    found = inspect.getattr_static(kind, name)
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    theirs = inspect.signature(eval(f"lambda {asked}: None")).parameters  # noqa: S307 - a text of this module
    ours = {name: one for name, one in inspect.signature(found).parameters.items() if name != "self"}

    assert [(one.name, one.kind) for one in ours.values()][: len(theirs)] == [(one.name, one.kind) for one in theirs.values()]
    assert all(ours[name].default == one.default for name, one in theirs.items() if one.default is not one.empty)
    assert all(one.default is not one.empty for name, one in ours.items() if name not in theirs)
    assert inspect.isasyncgenfunction(found) == (name in GENERATORS)
    assert inspect.iscoroutinefunction(found) == (name not in PLAIN | GENERATORS)


@pytest.mark.parametrize(
    ("asked", "gpus", "port", "arguments"),
    [
        ((1, (0, [3])), 1, "7300", {"bundle_indices": [3], "seed": 3}),
        ((1, (3, [9]), 8), 1, "7100", {"bundle_indices": [9], "seed": 3081}),
        ((0.5, (1, [4, 5])), 0, "7200", {"bundle_indices": [4, 5], "seed": 1026, "fraction_of_gpus": 0.5}),
        ((1, (0, [16, 17, 18, 19]), 2), 0, "7000", {"bundle_indices": [16, 17, 18, 19], "seed": 4, "fraction_of_gpus": 1}),
        ((1, None, 8), 0, None, {"fraction_of_gpus": 1}),
    ],
)
def test_an_actor_is_made_as_theirs(monkeypatch, asked, gpus, port, arguments):
    """What their function returned for the same arguments; both were compared for 1 116 more."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/cache")

    resources, variables, given, runtime = VllmAsyncGenerationWorker.configure_worker(*asked)

    assert (resources, given, runtime) == ({"num_gpus": gpus}, arguments, {})
    assert variables.pop("VLLM_CACHE_ROOT", None) == (f"/cache_{arguments['seed']}" if port else None)
    assert variables.pop("VLLM_PORT", None) == port
    several = {} if gpus else {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    assert variables == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_SKIP_P2P_CHECK": "1", **several}


async def test_a_deferred_worker_has_an_address_until_it_ends(model):
    worker = VllmAsyncGenerationWorker({"model": str(model()), "server": {"enabled": True}}, defer_model_load=True)
    with closing(worker._listener):
        url = await worker.get_reserved_url()
        assert url == f"http://127.0.0.1:{worker._listener.socket.getsockname()[1]}/v1"
        assert worker.is_alive()

        await worker.shutdown()

        assert await worker.get_reserved_url() is None


async def test_statistics_that_nobody_takes_stay_bounded(monkeypatch):
    """A fake stands for an engine that runs for hours."""
    monkeypatch.setattr(EngineMetrics, "INTERVAL_S", 0)
    monkeypatch.setattr(EngineMetrics, "MOST", 3)
    numbers = itertools.count()
    monkeypatch.setattr(vllm_adapter, "statistics", lambda: {"vllm:generation_tokens": [next(numbers)]})
    metrics = EngineMetrics(SimpleNamespace(log_stats=True))
    while next(numbers) < 20:  # noqa: ASYNC110 - the sampler offers no event
        await asyncio.sleep(0)
    metrics.stop()

    found = metrics.taken()["generation_tokens"]

    assert len(found) == 3
    assert min(found) > 10


def test_named_variables_travel_to_actors_of_the_engine(model, monkeypatch):
    monkeypatch.setenv("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "MINE")

    worker = VllmAsyncGenerationWorker({"model": str(model())}, None, 1.0, None, ["QUANT_CONFIG"])

    assert worker._launch.environment["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == "MINE,QUANT_CONFIG"


@pytest.mark.parametrize(
    ("actual", "experts", "dtype", "missing"), [(4, 8, torch.int8, 0), (5, 200, torch.int16, 0), (3, 1 << 17, torch.int32, 1)]
)
def test_experts_are_aligned_with_the_tokens(actual, experts, dtype, missing):
    """As in their batches: -1 where no route was captured, and a plain row for the last token, which nothing computed."""
    found = np.arange(actual * 6, dtype=np.uint8).reshape(actual, 3, 2)

    batch = routed_experts(found, 5, experts)

    rows = batch["routed_experts"]
    assert (rows.shape, rows.dtype) == ((1, 5, 3, 2), dtype)
    assert rows[0, : min(actual, 4)].tolist() == found[:4].tolist()
    assert rows[0, 4 - missing : 4].tolist() == [[[-1, -1]] * 3] * missing
    assert rows[0, 4].tolist() == [[0, 1]] * 3
    counts = [int(batch[f"r3_routed_experts_{name}_routes"]) for name in ("missing", "expected", "actual")]
    assert counts == [missing, 4, actual]
    with pytest.raises(BatchError, match=f"the experts of {actual} tokens for a sample of {actual - 1}"):
        routed_experts(found, actual - 1, experts)


def test_batches_of_samples_with_experts_are_padded_with_none():
    rows = [sample([1] * size, [2], [0.5], truncated=False) for size in (1, 3)]
    with_experts = [{**row, **routed_experts(np.ones((1, 2, 2), np.uint8), row["output_ids"].shape[1], 8)} for row in rows]

    batch = collate(list(enumerate(with_experts)), pad_token_id=0)

    assert batch["routed_experts"].shape == (2, 4, 2, 2)
    assert batch["routed_experts"][0, 2:].tolist() == [[[-1, -1]] * 2] * 2
    with pytest.raises(BatchError, match="only some samples have 'routed_experts'"):
        collate([(0, rows[0]), (1, with_experts[1])], pad_token_id=0)
