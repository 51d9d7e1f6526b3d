"""What an engine does over time: vLLM's own statistics, sampled while it runs."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from worker.engine import vllm_adapter

#: What is sampled: vLLM's name, and the type of a value.
_SAMPLED: dict[str, tuple[str, type[Any]]] = {
    "inflight_batch_sizes": ("vllm:num_requests_running", int),
    "num_pending_samples": ("vllm:num_requests_waiting", int),
    "kv_cache_usage_perc": ("vllm:kv_cache_usage_perc", float),
    "generation_tokens": ("vllm:generation_tokens", int),
}


class EngineMetrics:
    """Samples an engine's statistics, if vLLM keeps any: with ``engine.disable_log_stats: false``.

    Attributes:
        kept: Whether it does.
    """

    #: Seconds between two samples.
    INTERVAL_S = 0.5
    #: Values that are kept of each statistic, the last ones: of one data-parallel rank, those of ten hours.
    MOST = 72_000

    def __init__(self, llm: Any) -> None:
        """Samples from now on, in a task of the engine's event loop."""
        self.kept = bool(llm.log_stats)
        self._samples: dict[str, deque[Any]] = {}
        self.clear()
        self._sampling = asyncio.create_task(self._sample(), name="engine-metrics") if self.kept else None

    def stop(self) -> None:
        """Takes no more samples."""
        if self._sampling is not None:
            self._sampling.cancel()

    def taken(self) -> dict[str, list[Any]]:
        """Returns the last samples since `clear`, of each data-parallel rank one; empty if no statistics are kept."""
        return {name: list(values) for name, values in self._samples.items()}

    def clear(self) -> None:
        """Drops the samples."""
        self._samples = {name: deque(maxlen=self.MOST) for name in _SAMPLED} if self.kept else {}

    def counters(self) -> dict[str, Any]:
        """Returns every counter and gauge by vLLM's name, added up over data-parallel ranks; a list has one per position."""
        return {name: _added(values) for name, values in vllm_adapter.statistics().items()} if self.kept else {}

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self.INTERVAL_S)
            found = vllm_adapter.statistics()
            for name, (theirs, kind) in _SAMPLED.items():
                self._samples[name] += map(kind, found.get(theirs, ()))


def _added(values: list[Any]) -> Any:
    return [sum(column) for column in zip(*values, strict=True)] if isinstance(values[0], list) else sum(values)
