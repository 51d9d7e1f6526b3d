"""The calls of NeMo RL's asynchronous vLLM worker for which this one has no name of its own, as read at 7ea279abf."""
# ruff: noqa: ARG002 - what is refused has the arguments that it has there

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quirks_core.base.errors import QuirksError
from worker.errors import RefitError
from worker.lifecycle import WorkerLifecycle

#: The first port of the first engine on a node, and the distance to the next engine's.
_PORT, _PORTS = 7000, 100


class ReferenceCalls(WorkerLifecycle):
    """A trainer's calls by NeMo RL's names; what starts or asks the engine is a coroutine here, which Ray awaits."""

    @staticmethod
    def configure_worker(
        num_gpus: float, bundle_indices: tuple[int, Sequence[int]] | None = None, num_gpus_per_node: int | None = None
    ) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], dict[str, Any]]:
        """Returns resources, variables, constructor's arguments and ``runtime_env`` of a Ray actor with this worker.

        Args:
            num_gpus: GPUs of each bundle. An actor with several bundles takes none, because its engine's processes do.
            bundle_indices: Its node and bundles; None for an actor that only keeps a bundle for another one.
            num_gpus_per_node: For ports on nodes that several engines share.
        """
        variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_SKIP_P2P_CHECK": "1"}
        arguments: dict[str, Any] = {}
        if bundle_indices is not None:
            node, bundles = bundle_indices
            size = len(bundles)
            arguments = {"bundle_indices": bundles, "seed": node * 1024 + bundles[0] // size}
            cache = os.environ.get("VLLM_CACHE_ROOT", str(Path("~/.cache/vllm").expanduser()))
            slot = (bundles[0] if num_gpus_per_node is None else bundles[0] % num_gpus_per_node) // size
            if num_gpus_per_node is not None and size > num_gpus_per_node:
                slot = 0  # each of these engines begins on a node of its own
            variables |= {"VLLM_CACHE_ROOT": f"{cache}_{arguments['seed']}", "VLLM_PORT": str(_PORT + slot * _PORTS)}
            if size == 1:
                return {"num_gpus": num_gpus}, variables, arguments, {}
        variables["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
        return {"num_gpus": 0}, variables, {**arguments, "fraction_of_gpus": num_gpus}, {}

    async def load_model(self) -> None:
        """Starts the engine of a worker made with ``defer_model_load``; errors as for `post_init_async`, which may follow."""
        await self.post_init_async()

    def is_alive(self) -> bool:
        """Returns False once the engine has died; before its start and after `shutdown` the worker lives without one."""
        return self._running is None or self._running.engine.alive

    async def get_reserved_url(self) -> str | None:
        """Returns the server's base URL while its port is reserved and the engine not started; else None."""
        return None if self._listener is None else self._listener.base_url

    def report_refit_server_base_url(self) -> str | None:
        """Returns the server's URL without ``/v1`` if it takes weights (``server.rl_routes``); else None."""
        server = self._server if self.config.server.rl_routes else None
        return None if server is None else server.base_url.removesuffix("/v1")

    def _return_routed_experts_enabled(self) -> bool:
        """Returns whether samples have ``routed_experts`` (`worker.batch.routed_experts`)."""
        return self.requests.returns_experts

    # ---- statistics: vLLM keeps them with engine.disable_log_stats: false

    def _start_vllm_metrics_logger(self) -> None:
        """Raises a `QuirksError` if the engine keeps no statistics; else they are sampled from its start on."""
        if not self._parts.metrics.kept:
            raise QuirksError("the engine keeps no statistics; set engine.disable_log_stats: false")

    def get_vllm_logger_metrics(self) -> dict[str, Any]:
        """Returns lists of what was sampled (`worker.metrics.EngineMetrics`); empty if the engine keeps no statistics."""
        return self._parts.metrics.taken()

    def clear_vllm_logger_metrics(self) -> None:
        """Drops what was sampled."""
        self._parts.metrics.clear()

    def _get_raw_spec_counters(self) -> dict[str, float | list[float]]:
        """Returns all counters and gauges of now by vLLM's name, with those of speculative decoding where it is on."""
        return self._parts.metrics.counters()

    # ---- profiles

    async def start_gpu_profiling(self) -> None:
        """Begins a profile in every process of the engine, by the profiler of ``engine.profiler_config``.

        Raises:
            QuirksError: The engine has none.
        """
        async with self.engine.watched() as llm:
            if llm.vllm_config.profiler_config.profiler is None:
                raise QuirksError("the engine has no profiler; set engine.profiler_config: {profiler: cuda}, or torch")
            await llm.start_profile()

    async def stop_gpu_profiling(self) -> None:
        """Ends the profile; the torch profiler writes it."""
        async with self.engine.watched() as llm:
            await llm.stop_profile()

    # ---- refits by nccl_reshard

    async def init_nccl_reshard_comm_group_async(
        self,
        rank_prefix: int,
        pp_ips: list[str],
        pp_ports: list[int],
        pp_size: int,
        train_ranks_per_stage: int,
        sub_world_size: int,
    ) -> None:
        """Raises a `RefitError` that names the calls to make instead."""
        raise _no_reshard()

    async def prepare_nccl_reshard_refit_info_async(self, refit_info: dict[str, Any]) -> None:
        """Raises a `RefitError` that names the calls to make instead."""
        raise _no_reshard()

    async def nccl_reshard_refit_async(self) -> bool:
        """Raises a `RefitError` that names the calls to make instead."""
        raise _no_reshard()


def _no_reshard() -> RefitError:
    return RefitError(
        "nccl_reshard takes NeMo RL's extension of vLLM's worker, which this engine does not have: call init_collective_async "
        "and update_weights_from_collective_async, while each rank of the trainer sends its shards by "
        "worker.refit.CollectiveSender"
    )
