"""The function that ``decode-slots`` puts into vLLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.request import Request


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
