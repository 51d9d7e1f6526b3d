"""Models and settings that the examples of several quirks use."""

from collections.abc import Mapping
from typing import Any

QWEN3_MOE: Mapping[str, Any] = {"model_type": "qwen3_moe", "num_experts": 8}

#: Latent attention, and a rope without YaRN.
MOONLIGHT: Mapping[str, Any] = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}

#: A run of our own worker.
OURS: dict[str, Any] = {"engine.generate_from_dummy": False}
#: An engine that takes adapters.
LORA: dict[str, Any] = {"engine.enable_lora": True}

_PARALLEL = {
    "dp": "engine.data_parallel_size",
    "tp": "engine.tensor_parallel_size",
    "pp": "engine.pipeline_parallel_size",
    "ep": "parallel.expert_parallel_size",
    "flag": "engine.enable_expert_parallel",
    "strategy": "parallel.dp_strategy",
    "asynchronous": "engine.async_engine",
    "nodes": "cluster.num_nodes",
    "gpus": "cluster.gpus_per_node",
}


def parallel(**sizes: Any) -> dict[str, Any]:
    """Returns settings of parallelism by their short names, those of `_PARALLEL`."""
    return {_PARALLEL[name]: value for name, value in sizes.items()}


def context_parallel(size: int = 2, *, backend: str = "fsdp2", **train: Any) -> dict[str, Any]:
    """Returns settings of a trainer with context parallelism, and others of the section ``train``."""
    given = {"backend": backend, "context_parallel_size": size, **train}
    return {f"train.{name}": value for name, value in given.items()}
