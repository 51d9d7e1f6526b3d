"""vLLM loads packs of weights that it receives by NCCL on several streams, and nothing orders them.

What happens: a weight can be loaded before it has arrived, or from memory that already holds a later pack. A trainer with
vLLM's weight transfer ``nccl`` and ``packed`` sends packs of 1 GB. ``packed_nccl_broadcast_consumer`` receives them in turn on
two streams. vLLM's layerwise reload keeps views of a pack until a layer is complete; if the layer goes on in the next pack,
another stream reads them, without waiting for the first. PyTorch may also give the memory of a pack away while that stream
still reads it. How often that happens is not known.

When it can go: with vLLM 0.33.0, which orders the streams by events. The damage was not seen: on two H100s 48 updates of 16.4
GB by the function of 0.32.0 left every parameter as it was sent (``benchmarks/packed_nccl.py``). The quirk itself has not run
between GPUs.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, purpose, report, setting, unknown, yes

_NCCL = {"engine.weight_transfer_config": {"backend": "nccl"}}

QUIRK = Quirk(
    id="packed-broadcast-order",
    title="Weights that arrive in packs by NCCL are loaded on several streams that do not wait for each other",
    match=purpose("rollout") & setting("engine.weight_transfer_config.backend").one_of("nccl"),
    affected=Affected("vllm", introduced="0.26.0", fixed="0.33.0"),
    adjustments=Patch(
        "vllm.distributed.weight_transfer.packed_tensor:packed_nccl_broadcast_consumer",
        wrapper="quirks_plugins.weight_sync.packed_broadcast_order:wrap_consumer",
        expects=("2a589d42a227", "7d1980b848e2", "72943c2c3764", "35e6661cf245"),
        reason="the number of streams is the trainer's, and more than one is not ordered",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#52951"), report("NVIDIA-NeMo/RL/pull/3651")],
    evidence=StaticProbe("vllm.distributed.weight_transfer.packed_tensor", r"prev_received", found_means_affected=False),
    examples=[
        yes("qwen3", _NCCL, vllm="0.32.0", patches="packed_nccl_broadcast_consumer"),
        no("qwen3", _NCCL, vllm="0.33.0"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", _NCCL, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", _NCCL),
    ],
    cost="a pack is not received while the one before is loaded",
)


def wrap_consumer(original: Callable[..., None]) -> Callable[..., None]:
    """Make a packed broadcast receive and load on one stream, so that one pack is loaded before the next one is received."""
    signature = inspect.signature(original)

    @wraps(original)
    def packed_nccl_broadcast_consumer(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.arguments["num_buffers"] = 1
        original(*given.args, **given.kwargs)

    return packed_nccl_broadcast_consumer
