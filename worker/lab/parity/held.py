"""Runs in the engine's workers: the memory that they hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def held(worker: Any, tokens: int) -> tuple[int, float]:
    """Returns the bytes of weights and of the KV cache of some tokens, and the cache's bytes for a token.

    A CPU's kernels pack weights where no tensor shows them; there the first is the resident memory of the process.

    Args:
        worker: VLLM's worker.
        tokens: How many tokens are in the cache.
    """
    runner, config = worker.model_runner, worker.vllm_config.cache_config
    storages = [tensor.untyped_storage() for tensor in tree_leaves(runner.kv_caches)]
    caches = {storage.data_ptr(): storage.nbytes() for storage in storages}
    of_a_token = sum(caches.values()) / (config.num_gpu_blocks * config.block_size)
    if torch.device(worker.device).type == "cpu":
        import psutil

        return psutil.Process().memory_info().rss, of_a_token
    return int(runner.model_memory_usage + of_a_token * tokens), of_a_token
