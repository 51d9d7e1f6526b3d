"""What an engine does over time: vLLM's own statistics, sampled while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from quirks_core.base.errors import QuirksError
from worker.engine import vllm_adapter


def _total(values: list[float]) -> int:
    return int(sum(values))


#: What is sampled: vLLM's name, and what the values of an engine's data-parallel ranks become.
_SAMPLED: dict[str, tuple[str, Callable[[list[Any]], Any]]] = {
    "inflight_batch_sizes": ("vllm:num_requests_running", _total),
    "num_pending_samples": ("vllm:num_requests_waiting", _total),
    "kv_cache_usage_perc": ("vllm:kv_cache_usage_perc", max),
    "generation_tokens": ("vllm:generation_tokens", _total),
}


class EngineMetrics:
    """Samples of an engine's statistics, which vLLM keeps with ``engine.disable_log_stats: false``."""

    #: Seconds between two samples.
    INTERVAL_S = 0.5

    def __init__(self, llm: Any) -> None:
        """Starts to take samples if the engine keeps statistics."""
        self._kept = bool(llm.log_stats)
        self._samples: dict[str, list[Any]] = {}
        self._sampling: asyncio.Task[None] | None = None
        if self._kept:
            self.start()

    def start(self) -> None:
        """Takes samples from now on, if none are taken yet.

        Raises:
            QuirksError: The engine keeps no statistics.
        """
        if not self._kept:
            raise QuirksError("the engine keeps no statistics; set engine.disable_log_stats: false")
        if self._sampling is None:
            self.clear()
            self._sampling = asyncio.create_task(self._sample(), name="engine-metrics")

    def stop(self) -> None:
        """Takes no more samples."""
        if self._sampling is not None:
            self._sampling.cancel()

    def taken(self) -> dict[str, list[Any]]:
        """Returns the samples since the last `clear`, by what they are; empty if the engine keeps no statistics."""
        return {name: list(values) for name, values in self._samples.items()}

    def clear(self) -> None:
        """Drops the samples."""
        self._samples = {name: [] for name in _SAMPLED} if self._kept else {}

    def counters(self) -> dict[str, Any]:
        """Returns every counter and gauge by vLLM's name, added up over data-parallel ranks; a list has one per position."""
        return {name: _added(values) for name, values in vllm_adapter.statistics().items()} if self._kept else {}

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self.INTERVAL_S)
            found = vllm_adapter.statistics()
            for name, (theirs, joined) in _SAMPLED.items():
                self._samples[name].append(joined(found.get(theirs, [0])))


def _added(values: list[Any]) -> Any:
    return [sum(column) for column in zip(*values, strict=True)] if isinstance(values[0], list) else sum(values)
