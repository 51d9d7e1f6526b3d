"""Layers that the engine fuses from several of a checkpoint's tensors, and of which a refit brought only some.

vLLM's layerwise reload creates such a layer as soon as one part comes; what is missing is then whatever was in memory. The
list of loaded parameters does not show it: the fused one counts as loaded. Imports vLLM for what that reload notes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch import nn
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info


def missing(model: nn.Module) -> Iterator[str]:
    """Returns which parts did not come; to be called while a reload is open, once everything was loaded.

    Args:
        model: The engine's model.

    Yields:
        ``"model.layers.0.self_attn.qkv_proj lacks k"``.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, QKVParallelLinear | MergedColumnParallelLinear):
            for lacking in _lacking(layer):
                yield f"{name} lacks {', '.join(map(str, lacking))}"


def _lacking(layer: nn.Module) -> Iterator[list[Any]]:
    """Compares the parts of each of a layer's parameters with those that the layer is made of."""
    parts = ("q", "k", "v") if isinstance(layer, QKVParallelLinear) else range(len(layer.output_sizes))
    came = defaultdict(set)
    # What came completely has been processed already, and nothing is left of it here.
    for parameter, call in get_layerwise_info(layer).loaded_weights:
        came[parameter].add(call.arguments.get("loaded_shard_id"))
    for shards in came.values():
        if shards <= set(parts):  # anything else came in one piece, or in larger ones
            yield [part for part in parts if part not in shards]
