"""What an engine will be started with: configuration, plan, arguments and environment, all checked, nothing started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quirks_core.apply.process import check_engine_environment
from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.model import require_weights
from quirks_core.plan.records import Plan
from quirks_core.plan.summary import messages
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry
from worker.engine import vllm_adapter
from worker.engine.engine_rank import EngineRank
from worker.engine.readiness import start_problem
from worker.refit.engine.transfer import BACKEND

#: Names of variables that vLLM hands to its processes in Ray actors.
_COPIED_BY_RAY = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a start needs.

    Attributes:
        config: The configuration, with what the plan changes.
        arguments: Arguments of vLLM's ``AsyncEngineArgs``.
        environment: Variables for the engine's processes, beside those of the plan.
    """

    config: GenerationConfig
    registry: Registry
    plan: Plan
    arguments: dict[str, Any]
    environment: dict[str, str]


def prepare(
    config: GenerationConfig,
    options: PlanOptions,
    *,
    bundle_indices: Sequence[int] | None = None,
    fraction_of_gpus: float = 1.0,
    seed: int | None = None,
    extra_env_vars: Sequence[str] = (),
    engine_rank: EngineRank | None = None,
) -> Launch:
    """Makes the plan and builds what the engine needs; see `worker.VllmAsyncGenerationWorker` for arguments and errors."""
    if not 0 < fraction_of_gpus <= 1:
        raise UsageError(f"fraction_of_gpus must lie in (0, 1], not {fraction_of_gpus}")
    if not all(isinstance(index, int) for index in bundle_indices or ()):
        raise UsageError(f"bundle_indices must be the numbers of bundles, not {bundle_indices!r}")
    registry = options.registry()
    plan = make_plan(config, options, registry=registry)
    plan.check()
    config = config.adjusted(plan.changes)
    _check(config, plan, engine_rank)
    arguments = vllm_adapter.engine_arguments(
        config, plan, in_placement_group=bundle_indices is not None, engine_rank=engine_rank
    )
    if config.purpose == "rollout":
        arguments.setdefault("weight_transfer_config", {"backend": BACKEND})
    if seed is not None:
        arguments["seed"] = seed
    elif bundle_indices and "engine.seed" not in plan.context.typed:
        arguments["seed"] = bundle_indices[0]  # no other worker of the group has it
    environment = dict(config.env)
    if bundle_indices is not None:
        environment["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, bundle_indices))
        environment["VLLM_RAY_PER_WORKER_GPUS"] = str(fraction_of_gpus)
    if extra_env_vars:
        named = {*extra_env_vars, *filter(None, os.environ.get(_COPIED_BY_RAY, "").split(","))}
        environment[_COPIED_BY_RAY] = ",".join(sorted(named))
    check_engine_environment({**os.environ, **config.env})
    if plan.value("engine.load_format") != "dummy":
        require_weights(config.model.path)
    return Launch(config, registry, plan, arguments, environment)


def _check(config: GenerationConfig, plan: Plan, engine_rank: EngineRank | None) -> None:
    """Makes sure that one engine can do what the plan says; a worker without a group starts one that owns all ranks.

    Raises:
        UsageError: It cannot.
    """
    ranks, strategy = plan.value("engine.data_parallel_size"), plan.value("parallel.dp_strategy")
    if engine_rank is None and ranks > 1 and strategy != "engine":
        raise UsageError(
            f"the plan has {ranks} data-parallel ranks as parallel.dp_strategy {strategy!r}, which takes several engines: make "
            "a worker.WorkerGroup, or set parallel.dp_strategy: engine for one engine that owns all ranks"
        )
    if config.server.rl_routes and config.purpose != "rollout":
        raise UsageError(f"server.rl_routes: routes that replace weights need purpose: rollout, not {config.purpose}")
    if config.server.rl_routes and engine_rank is not None and engine_rank.engines > 1 and engine_rank.strategy == "actors":
        raise UsageError(
            "server.rl_routes: a call reaches one engine, and engines of one data-parallel group pause and refit together; "
            "set parallel.dp_strategy: engine, or refit by the group's methods"
        )
    if config.purpose != "rollout" and start_problem(plan):
        raise UsageError(
            f"engine.load_format is dummy, but with purpose: {config.purpose} no refit can replace the dummy weights; set "
            "engine.load_format: auto, or engine.generate_from_dummy: true for a benchmark of speed"
        )


def warnings(config: GenerationConfig, plan: Plan) -> list[str]:
    """Returns what a user should know before a run, given its adjusted configuration: the plan's warnings, and of sampling."""
    found: list[str] = [*messages(plan)]
    least, mode = config.sampling.min_new_tokens, plan.value("engine.logprobs_mode")
    if config.purpose == "rollout" and least and mode == "processed_logprobs":
        found.append(
            f"sampling.min_new_tokens = {least} masks the tokens that end a sample until it has {least} tokens; processed "
            "logprobs of these are renormalised, and the trainer's are not: set sampling.min_new_tokens: 0, or mask the same "
            "tokens there"
        )
    return found


def parsed(config: GenerationConfig | Mapping[str, Any]) -> GenerationConfig:
    """Returns a configuration of an asynchronous engine, parsed if it is a nested mapping.

    Raises:
        UsageError: Something in it is wrong.
    """
    found = config if isinstance(config, GenerationConfig) else GenerationConfig.parse(config)
    if not found.engine.async_engine:
        raise UsageError("engine.async_engine is false, but a worker and a WorkerGroup run asynchronous engines")
    return found
