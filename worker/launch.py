"""What an engine will be started with: configuration, plan, arguments and environment, all checked, nothing started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quirks_core.apply import check_engine_environment
from quirks_core.checkpoint import require_weights
from quirks_core.context import RunContext
from quirks_core.errors import UsageError
from quirks_core.lock import check_lock
from quirks_core.plan import Plan
from quirks_core.registry import Registry
from quirks_core.switches import Switches, Wishes
from worker import vllm_adapter
from worker.config import GenerationConfig
from worker.place import Place

#: Bundles of a Ray placement group, or the node's number and the bundles.
Bundles = Sequence[int] | tuple[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Launch:
    """The end of everything pure.

    Attributes:
        config: The configuration.
        registry: The quirks that were asked.
        plan: What applies and why.
        arguments: Arguments of vLLM's ``AsyncEngineArgs``.
        environment: Variables for the engine's processes, beside those of the plan.
    """

    config: GenerationConfig
    registry: Registry
    plan: Plan
    arguments: dict[str, Any]
    environment: dict[str, str]


def prepare(
    config: GenerationConfig | Mapping[str, Any],
    bundle_indices: Bundles | None,
    fraction_of_gpus: float,
    seed: int | None,
    wishes: Wishes,
    place: Place | None = None,
) -> Launch:
    """Resolves the plan and builds what the engine needs; see `worker.VllmAsyncGenerationWorker` for arguments and errors."""
    config = config if isinstance(config, GenerationConfig) else GenerationConfig.parse(config)
    if not 0 < fraction_of_gpus <= 1:
        raise UsageError(f"fraction_of_gpus must lie in (0, 1], not {fraction_of_gpus}")
    if not config.engine.async_engine:
        raise UsageError("engine.async_engine is false, but VllmAsyncGenerationWorker runs the asynchronous engine")
    node, bundles = _split(bundle_indices)
    config = _alone(config) if place is None else config
    registry, plan = resolve(config, wishes)
    arguments = vllm_adapter.engine_arguments(config, plan, in_placement_group=bundles is not None, place=place)
    if seed is not None:
        arguments["seed"] = seed
    elif bundles and "engine.seed" not in plan.context.typed:
        arguments["seed"] = node * 1024 + bundles[0]  # no other worker of the group has it
    environment = dict(config.env)
    if "VLLM_WORKER_MULTIPROC_METHOD" not in os.environ:
        # A trainer has threads and often CUDA, which no fork survives; vLLM spawns of itself only where it notices.
        environment.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if bundles is not None:
        environment["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, bundles))
        environment["VLLM_RAY_PER_WORKER_GPUS"] = str(fraction_of_gpus)
    check_engine_environment({**os.environ, **config.env})
    if plan.value("engine.load_format") != "dummy":
        require_weights(config.model.path)
    return Launch(config, registry, plan, arguments, environment)


def resolve(config: GenerationConfig, wishes: Wishes) -> tuple[Registry, Plan]:
    """Resolves the plan for a configuration.

    Raises:
        RefusedError: The configuration cannot work; the error lists all reasons.
        LockError: The loaded quirks are not those of the lock file.
        BrokenPluginsError: There are broken plugins, and MODEL_QUIRKS_STRICT is 1.
    """
    switches = Switches.gather(api=wishes, config_file=Wishes(config.quirks.disable, config.quirks.force))
    registry = Registry.load(switches=switches)
    check_lock(registry, config.quirks.locked)
    plan = registry.resolve(RunContext.gather(config), switches)
    plan.check()
    return registry, plan


def _alone(config: GenerationConfig) -> GenerationConfig:
    """A worker without a group owns all its data-parallel ranks: who makes one has chosen that strategy."""
    if config.engine.data_parallel_size == 1:
        return config
    strategy = config.parallel.dp_strategy
    if strategy not in (None, "engine"):
        raise UsageError(
            f"parallel.dp_strategy {strategy!r} takes several engines: make a worker.WorkerGroup, or set it to 'engine'"
        )
    return config.model_copy(update={"parallel": config.parallel.model_copy(update={"dp_strategy": "engine"})})


def _split(indices: Bundles | None) -> tuple[int, tuple[int, ...] | None]:
    """Splits what a group gives to a worker into the node's number and the bundles."""
    if indices is None:
        return 0, None
    if len(indices) == 2 and isinstance(indices[1], Sequence):
        node, bundles = indices
        return int(node), tuple(bundles)  # type: ignore[arg-type]
    return 0, tuple(int(bundle) for bundle in indices)  # type: ignore[arg-type]
