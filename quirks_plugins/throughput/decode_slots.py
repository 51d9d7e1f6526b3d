"""Rollouts: at each step the scheduler looks for KV cache blocks for every running request, which needs one in 16 steps.

What happens: a small model with many requests generates fewer tokens per second than its GPU could. On an H200 (vLLM 0.26.0, a
Qwen3-1.7B shape, 256 requests) the GPU is idle for more than a third of each step and waits for the engine core, which spends
a fifth of its time in ``KVCacheManager.allocate_slots``. A request has room for 16 tokens in a block, and usually gets one
token per step, but vLLM frees, counts, allocates and caches blocks at every step. The change that an engineer proposed
upstream was not merged (vllm-project/vllm#29206); it measured 17 % of the time.

When it can go: when vLLM returns early itself. The quirk does nothing on versions after 0.33.0, whose source has not been read
yet, because a run should not be refused for the sake of speed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Kind, Patch, Quirk, Severity, StaticProbe, no, package, purpose, report, unknown, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.runs import OURS

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.request import Request

QUIRK = Quirk(
    id="decode-slots",
    title="vLLM's scheduler looks for KV cache blocks for every running request at every step",
    kind=Kind.FEATURE,
    match=our_worker & purpose("rollout") & package("vllm", fixed="0.33.1"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        wrapper="quirks_plugins.throughput.decode_slots:wrap_allocate_slots",
        expects=("17527ea1ffe2", "f9b68fc78c89", "0b4514cbcc14", "a6ece9177eb6"),
        reason="no setting makes the scheduler skip requests whose blocks have room",
    ),
    severity=Severity.SLOW,
    references=report("vllm-project/vllm/pull/29206"),
    evidence=StaticProbe(
        "vllm.v1.core.kv_cache_manager",
        r"def allocate_slots\((?:(?!\n    def |return self\.empty_kv_cache_blocks)[\s\S])*self\.coordinator\.cache_blocks\(",
    ),
    examples=[
        yes("qwen3", OURS, vllm="0.33.0"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", OURS, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", OURS, vllm="0.25.1"),
        no("qwen3", OURS, vllm="0.33.1"),
    ],
    cost="nothing that was measured",
)


def wrap_allocate_slots(original: Callable[..., KVCacheBlocks | None]) -> Callable[..., KVCacheBlocks | None]:
    """Make `KVCacheManager.allocate_slots` return at once if a running request's blocks have room and none becomes full."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    from vllm.v1.request import RequestStatus

    def has_room(slots: KVCacheManager, request: Request, new: int, lookahead: int) -> bool:
        """Whether the original would allocate no block, free none, and put none into the prefix cache."""
        managers = slots.coordinator.single_type_managers
        if request.status is not RequestStatus.RUNNING or len(managers) != 1:
            return False
        manager, name, end = managers[0], request.request_id, request.num_computed_tokens + new
        size: int = manager.block_size
        if type(manager) is not FullAttentionManager or end + lookahead > len(manager.req_to_blocks[name]) * size:
            return False  # managers of other layers free blocks that leave their window
        cached: int = manager.num_cached_block.get(name, 0)
        return not manager.enable_caching or min(end, request.num_tokens) // size <= cached

    @wraps(original)
    def allocate_slots(
        self: KVCacheManager, request: Request, num_new_tokens: int, *others: Any, num_lookahead_tokens: int = 0, **named: Any
    ) -> KVCacheBlocks | None:
        if not others and not named and num_new_tokens > 0 and has_room(self, request, num_new_tokens, num_lookahead_tokens):
            return self.empty_kv_cache_blocks
        return original(self, request, num_new_tokens, *others, num_lookahead_tokens=num_lookahead_tokens, **named)

    return allocate_slots
