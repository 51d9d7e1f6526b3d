"""The one module that knows vLLM's moving API; written for 0.26 to 0.33.

Nothing of vLLM is imported before a function that needs it runs: vLLM reads environment variables while it is imported,
and the plan must have set them by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quirks_core.plan import Plan
from quirks_core.receipt import ReadBack
from worker.config import GenerationConfig, SamplingSection
from worker.transfer import BACKEND

#: Where the engine keeps what each slot sets: attribute paths from its ``VllmConfig``.
_READ_BACK = {
    "engine.data_parallel_size": "parallel_config.data_parallel_size",
    "engine.enable_expert_parallel": "parallel_config.enable_expert_parallel",
    "engine.enable_prefix_caching": "cache_config.enable_prefix_caching",
    "engine.enforce_eager": "model_config.enforce_eager",
    "engine.gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "engine.load_format": "load_config.load_format",
    "engine.logprobs_mode": "model_config.logprobs_mode",
    "engine.max_model_len": "model_config.max_model_len",
    "engine.max_num_seqs": "scheduler_config.max_num_seqs",
    "engine.pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "engine.seed": "model_config.seed",
    "engine.tensor_parallel_size": "parallel_config.tensor_parallel_size",
}
#: What the engine mixes into its worker class.
EXTENSION = "worker.extension.ConfigurationReport"
#: Slots under ``engine.`` that choose between engines and are no arguments of one.
_NOT_ARGUMENTS = ("engine.async_engine", "engine.runtime")


def engine_arguments(config: GenerationConfig, plan: Plan, *, in_placement_group: bool = False) -> dict[str, Any]:
    """Builds the engine's arguments from what the user typed and what the plan says.

    Args:
        config: The configuration.
        plan: The plan for it.
        in_placement_group: The worker owns bundles of a Ray placement group.

    Returns:
        Arguments of ``AsyncEngineArgs``; what is left open is missing.

    Raises:
        UsageError: The user typed one that the installed vLLM does not know.
    """
    config.check_engine_arguments()
    arguments: dict[str, Any] = {
        "model": config.model.path,
        "tokenizer": config.model.tokenizer,
        "revision": config.model.revision,
        "disable_log_stats": True,
        "worker_extension_cls": EXTENSION,
        **_executor(config, in_placement_group),
    }
    if config.purpose == "rollout":
        arguments["weight_transfer_config"] = {"backend": BACKEND}
    for slot in plan.context.settings.keys() | plan.changes.keys():
        if slot.startswith("engine.") and slot not in _NOT_ARGUMENTS:
            arguments[slot.removeprefix("engine.")] = plan.value(slot)
    arguments.update(config.engine.vllm_kwargs)
    return {key: value for key, value in arguments.items() if value is not None}


def _executor(config: GenerationConfig, in_placement_group: bool) -> dict[str, str]:
    """Names the executor: left open, vLLM silently takes Ray for several ranks inside a placement group."""
    ranks = config.engine.tensor_parallel_size * config.engine.pipeline_parallel_size
    if in_placement_group and ranks > 1:
        return {"distributed_executor_backend": "ray"}
    if ranks * config.engine.data_parallel_size > 1:
        return {"distributed_executor_backend": "mp"}
    return {}


async def report_configuration(engine: Any) -> bool:
    """Has every worker report the configuration that it runs with, beside its acknowledgement.

    Returns:
        False if the user mixes a class of their own into vLLM's workers, so that ours is not there.
    """
    if engine.vllm_config.parallel_config.worker_extension_cls != EXTENSION:
        return False
    await engine.collective_rpc("report_configuration")
    return True


def start_engine(arguments: Mapping[str, Any]) -> Any:
    """Starts an ``AsyncLLM``; blocks until all its processes are up, 20 to 60 s on two CPU cores.

    Call it on the event loop that will use the engine.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def planned_sampling(config: GenerationConfig, plan: Plan) -> SamplingSection:
    """Returns how to sample: what the user configured, with what the plan changes."""
    changes = {slot.removeprefix("sampling."): value for slot, value in plan.changes.items() if slot.startswith("sampling.")}
    return config.sampling.model_copy(update=changes)


def sampling_params(sampling: SamplingSection, *, greedy: bool, max_tokens: int, text: bool = False) -> Any:
    """Builds the parameters of one request, for the cheapest way to tokens and their logprobs.

    ``logprobs=0`` gives the sampled token's logprob alone, flat logprobs save one dictionary per token, without
    detokenization no text is made, and final-only output crosses the process border once.

    Args:
        sampling: The configured sampling.
        greedy: Take the most probable token instead.
        max_tokens: Most tokens to generate.
        text: The caller wants text.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=-1 if greedy else sampling.top_k,
        max_tokens=max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        logprobs=0,
        flat_logprobs=True,
        detokenize=text,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def sampled_logprobs(completion: Any) -> list[float]:
    """Returns the logprob of every generated token of a vLLM ``CompletionOutput``."""
    if completion.logprobs is None:
        return []
    # With logprobs=0 each position holds exactly one entry, the sampled token's.
    return [float(value) for value in completion.logprobs.logprobs]


async def update_weights(engine: Any, path: str) -> None:
    """Refits the engine from a safetensors file through its native weight transfer.

    Generation pauses meanwhile; requests in flight are kept and go on under the new weights, their KV cache recomputed.

    Args:
        engine: The ``AsyncLLM``.
        path: Absolute path, readable in every worker process.
    """
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    await engine.pause_generation(mode="keep", clear_cache=True)
    try:
        await engine.start_weight_update()
        await engine.update_weights(WeightTransferUpdateRequest(update_info={"path": path}))
        await engine.finish_weight_update()
    finally:
        await engine.resume_generation()


def read_back(engine: Any, plan: Plan) -> tuple[ReadBack, ...]:
    """Reads the slots back from the engine's own configuration.

    A slot that a quirk put in force is binding: the receipt refuses another value.
    """
    in_force = {item.slot for item in plan.adjustments if item.in_force}
    return tuple(
        ReadBack(
            slot=slot,
            before=plan.context.settings.get(slot),
            planned=plan.value(slot),
            engine=value,
            binding=slot in in_force,
        )
        for slot, value in read_configuration(engine.vllm_config).items()
    )


def read_configuration(vllm_config: Any) -> dict[str, Any]:
    """Returns, by slot, what a ``VllmConfig`` holds; the driver and every worker have one of their own."""
    found = {}
    for slot, path in sorted(_READ_BACK.items()):
        value: Any = vllm_config
        for name in path.split("."):
            value = getattr(value, name, None)
        found[slot] = getattr(value, "value", value)  # of an enum, its text
    return found
