"""The scheduler leaves running requests alone that need no KV cache block. Both runs here are vLLM's own scheduler."""

from __future__ import annotations

import os
import random
from unittest import mock

import pytest

from quirks_plugins.throughput.decode_slots import wrap_allocate_slots
from worker.lab.kit import checkpoints

BLOCK, BLOCKS = 4, 40


# ---- vLLM's scheduler, with results of a model that draws tokens


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    """A run with room for a part of what is asked of it."""
    from vllm.engine.arg_utils import EngineArgs

    model = checkpoints.build("qwen3", tmp_path_factory.mktemp("model") / "qwen3")
    arguments = {"max_model_len": 64, "max_num_seqs": 12, "max_num_batched_tokens": 64, "enable_chunked_prefill": True}
    with mock.patch.dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1"):
        return EngineArgs(model=str(model), block_size=BLOCK, async_scheduling=True, **arguments).create_engine_config()


def scheduler(configuration, kinds, *, caching):
    """A scheduler for layers of these kinds."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
    from vllm.v1.structured_output import StructuredOutputManager

    size = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = {"full": FullAttentionSpec(**size), "window": SlidingWindowSpec(**size, sliding_window=10)}
    groups = [KVCacheGroupSpec([f"layer{index}"], specs[kind]) for index, kind in enumerate(kinds)]
    configuration.cache_config.num_gpu_blocks = BLOCKS
    configuration.cache_config.enable_prefix_caching = caching
    return AsyncScheduler(
        vllm_config=configuration,
        kv_cache_config=KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(configuration),
        block_size=BLOCK,
        log_stats=False,
    )


def story(scheduler, seed):
    """Runs requests that come and go, some of them with a common prefix, and yields what each step does and leaves."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    chosen = random.Random(seed)  # noqa: S311 - both runs draw the same
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    common = [chosen.randrange(5, 500) for _ in range(18)]
    waiting = []
    for number in range(30):
        prompt = common[: chosen.randrange(19)] + [chosen.randrange(5, 500) for _ in range(chosen.randrange(1, 12))]
        params = SamplingParams(max_tokens=chosen.randrange(1, 34), ignore_eos=True)
        waiting.append(Request(f"r{number}", prompt, params, None, block_hasher=hasher))
    in_flight = []
    for _ in range(600):
        while waiting and chosen.random() < 0.5:
            scheduler.add_request(waiting.pop())
        if scheduler.requests and chosen.random() < 0.02:
            scheduler.finish_requests(chosen.choice(sorted(scheduler.requests)), RequestStatus.FINISHED_ABORTED)
        step = scheduler.schedule()
        if step.total_num_scheduled_tokens:
            in_flight.append(step)
        if in_flight and (len(in_flight) == 2 or not step.total_num_scheduled_tokens):
            oldest = in_flight.pop(0)
            names = list(oldest.num_scheduled_tokens)
            made = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: row for row, name in enumerate(names)},
                sampled_token_ids=[[chosen.randrange(5, 500)] if _is_decoded(scheduler, name) else [] for name in names],
            )
            scheduler.update_from_output(oldest, made)
        slots = scheduler.kv_cache_manager
        yield (
            step.num_scheduled_tokens,
            [(request.req_id, request.block_ids) for request in step.scheduled_new_reqs],
            (step.scheduled_cached_reqs.req_ids, step.scheduled_cached_reqs.new_block_ids),
            sorted(step.preempted_req_ids or ()),
            slots.block_pool.get_num_free_blocks(),
            sorted(map(str, slots.block_pool.cached_block_hash_to_block._cache)),
            {name: slots.get_block_ids(name) for name in sorted(scheduler.requests)},
        )
        if not (waiting or scheduler.requests or in_flight):
            return
    pytest.fail("the requests did not end")


def _is_decoded(scheduler, name):
    request = scheduler.requests.get(name)
    return request is not None and request.num_computed_tokens >= request.num_prompt_tokens


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("kinds", "caching", "early"),
    [
        (["full"], True, True),
        (["full"], False, True),
        (["window"], True, False),
        (["full", "window"], True, False),
    ],
    ids=["full attention", "no prefix cache", "sliding window", "two groups"],
)
def test_every_step_schedules_the_same_with_the_same_blocks(configuration, kinds, caching, early, seed, lookahead):
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    original, calls = KVCacheManager.allocate_slots, []

    def counted(*arguments, **named):
        calls.append(1)
        return original(*arguments, **named)

    def run():
        made = scheduler(configuration, kinds, caching=caching)
        made.num_lookahead_tokens = lookahead  # slots for what speculative decoding drafts
        return list(story(made, seed))

    expected = run()
    with mock.patch.object(KVCacheManager, "allocate_slots", counted):
        assert run() == expected
        usual = len(calls)
        calls.clear()
        KVCacheManager.allocate_slots = wrap_allocate_slots(counted)
        assert run() == expected

    if early:
        assert any(preempted for *_, preempted, _, _, _ in expected)
        assert len(calls) < 0.6 * usual
    else:
        assert len(calls) == usual
