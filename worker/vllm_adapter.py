"""The one module that knows vLLM's moving API; written for 0.26 to 0.33.

Nothing of vLLM is imported before a function that needs it runs: vLLM reads environment variables while it is imported,
and the plan must have set them by then.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quirks_core.errors import shortened, words
from quirks_core.plan import Plan
from quirks_core.receipt import ReadBack
from worker.config import GenerationConfig, SamplingSection
from worker.place import Place
from worker.transfer import BACKEND

#: Where the engine keeps what each slot sets: attribute paths from its ``VllmConfig``.
_READ_BACK = {
    "engine.async_scheduling": "scheduler_config.async_scheduling",
    "engine.data_parallel_size": "parallel_config.data_parallel_size",
    "engine.enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "engine.enable_expert_parallel": "parallel_config.enable_expert_parallel",
    "engine.enable_prefix_caching": "cache_config.enable_prefix_caching",
    "engine.enforce_eager": "model_config.enforce_eager",
    "engine.generation_config": "model_config.generation_config",
    "engine.gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "engine.head_dtype": "model_config.head_dtype",
    "engine.kv_cache_dtype": "cache_config.cache_dtype",
    "engine.load_format": "load_config.load_format",
    "engine.logprobs_mode": "model_config.logprobs_mode",
    "engine.max_model_len": "model_config.max_model_len",
    "engine.max_num_seqs": "scheduler_config.max_num_seqs",
    "engine.pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "engine.seed": "model_config.seed",
    "engine.tensor_parallel_size": "parallel_config.tensor_parallel_size",
}
#: What the engine mixes into its worker class.
EXTENSION = "worker.extension.WorkerReports"
#: What can become of requests in flight when an engine pauses.
PAUSE_MODES = ("abort", "keep", "wait")
#: Slots under ``engine.`` that choose between engines and are no arguments of one.
_NOT_ARGUMENTS = ("engine.async_engine", "engine.runtime")


def engine_arguments(
    config: GenerationConfig, plan: Plan, *, in_placement_group: bool = False, place: Place | None = None
) -> dict[str, Any]:
    """Builds the engine's arguments from what the user typed and what the plan says.

    Args:
        config: The configuration.
        plan: The plan for it.
        in_placement_group: The worker owns bundles of a Ray placement group.
        place: The engine's place in a group; None if it is alone.

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
        **_executor(config, in_placement_group, shared=place is None or place.strategy != "independent"),
    }
    if config.purpose == "rollout":
        arguments["weight_transfer_config"] = {"backend": BACKEND}
    for slot in plan.context.settings.keys() | plan.changes.keys():
        if slot.startswith("engine.") and slot not in _NOT_ARGUMENTS:
            arguments[slot.removeprefix("engine.")] = plan.value(slot)
    if head_dtype := arguments.pop("head_dtype", None):  # vLLM reads it from the checkpoint's configuration
        arguments["hf_overrides"] = {**(arguments.get("hf_overrides") or {}), "head_dtype": head_dtype}
    if place is not None:
        arguments.update(_place_arguments(place, arguments, plan))
    arguments.update(config.engine.vllm_kwargs)
    return {key: value for key, value in arguments.items() if value is not None}


def _place_arguments(place: Place, arguments: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Returns what makes an engine one of a group."""
    found: dict[str, Any] = {}
    if place.engines > 1 and plan.value("parallel.distinct_seeds"):
        found["seed"] = (arguments.get("seed") or 0) + place.rank
    if place.strategy == "independent":
        found["data_parallel_size"] = 1
    elif place.strategy == "actors" and place.engines > 1:
        found["data_parallel_rank"] = place.rank  # vLLM's external load balancing: one frontend for each rank
        found["data_parallel_address"] = place.address
        found["data_parallel_rpc_port"] = place.port
    return found


def _executor(config: GenerationConfig, in_placement_group: bool, *, shared: bool) -> dict[str, str]:
    """Names the executor: left open, vLLM silently takes Ray for several ranks inside a placement group.

    Args:
        config: The configuration.
        in_placement_group: The worker owns bundles of a Ray placement group.
        shared: The data-parallel ranks know of each other.
    """
    ranks = config.engine.tensor_parallel_size * config.engine.pipeline_parallel_size
    if in_placement_group and ranks > 1:
        return {"distributed_executor_backend": "ray"}
    if ranks * (config.engine.data_parallel_size if shared else 1) > 1:
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


def sampling_params(
    sampling: SamplingSection,
    *,
    greedy: bool,
    max_tokens: int,
    stop: Sequence[str] = (),
    seed: int | None = None,
    text: bool = False,
) -> Any:
    """Builds the parameters of one request, for the cheapest way to tokens and their logprobs.

    ``logprobs=0`` gives the sampled token's logprob alone, flat logprobs save one dictionary per token, without
    detokenization no text is made, and final-only output crosses the process border once.

    Args:
        sampling: The configured sampling.
        greedy: Take the most probable token instead.
        max_tokens: Most tokens to generate.
        stop: Texts that end the generation.
        seed: Seed of this request alone.
        text: The caller wants text.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=-1 if greedy else sampling.top_k,
        max_tokens=max_tokens,
        min_tokens=min(sampling.min_new_tokens, max_tokens),
        stop=list(stop) or None,
        include_stop_str_in_output=bool(stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        seed=seed,
        logprobs=0,
        flat_logprobs=True,
        detokenize=text or bool(stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scoring_params() -> Any:
    """Builds the parameters of a request that computes the logprobs of its prompt; it must generate one token besides."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        prompt_logprobs=0,
        max_tokens=1,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def prompt_logprobs(output: Any) -> list[float]:
    """Returns a logprob for every token of the prompt of a vLLM ``RequestOutput``; 0.0 for the first.

    They are those of softmax(logits): vLLM applies neither temperature nor top-k or top-p to prompts, whatever
    ``logprobs_mode`` says.
    """
    # With prompt_logprobs=0 each position but the first holds exactly one entry, the prompt's own token.
    return [0.0, *map(float, output.prompt_logprobs.logprobs)]


def sampled_logprobs(completion: Any) -> list[float]:
    """Returns the logprob of every generated token of a vLLM ``CompletionOutput``."""
    if completion.logprobs is None:
        return []
    # With logprobs=0 each position holds exactly one entry, the sampled token's.
    return [float(value) for value in completion.logprobs.logprobs]


def generated_so_far(engine: Any) -> list[int]:
    """Returns how many tokens each request has that is being worked on."""
    return [state.detokenizer.num_output_tokens() for state in engine.output_processor.request_states.values()]


def model_dtype(engine: Any) -> str:
    """Returns the dtype that the engine computes in, as ``bfloat16``."""
    return str(engine.model_config.dtype).removeprefix("torch.")


def labels_tokens() -> bool:
    """Tells whether the installed vLLM says which weights made a token (0.32)."""
    from vllm.outputs import CompletionOutput

    return "weight_versions" in getattr(CompletionOutput, "__dataclass_fields__", {})


def block_size(engine: Any) -> int:
    """Returns how many tokens a block of the KV cache holds; only whole blocks are reused for another request."""
    return int(engine.vllm_config.cache_config.block_size)


def engine_died(error: BaseException) -> bool:
    """Tells whether an error says that the engine's processes are gone."""
    from vllm.v1.engine.exceptions import EngineDeadError

    return isinstance(error, EngineDeadError)


def remote_reason(error: BaseException) -> str:
    """Returns what a worker process said, without the frames that the engine's processes put around it."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Call to \w+ method failed: ", "", text)
    framed = re.search(r"Worker failed with error ['\"](.*)['\"], please check the stack trace", text)
    return shortened(framed.group(1) if framed else text) or words(error)


def version_spans(completion: Any, version: str) -> list[tuple[str, int, int]]:
    """Returns which weights made which tokens of a vLLM ``CompletionOutput``.

    Args:
        completion: The finished output.
        version: Label of the weights now; an engine that labels nothing (0.26) is taken to have used one set throughout.

    Returns:
        ``(version, start, end)`` spans over the generated tokens, in order.
    """
    spans = getattr(completion, "weight_versions", None)
    if not spans:
        return [(version, 0, len(completion.token_ids))]
    return [(span.version, span.start, span.end) for span in spans]


async def pause(engine: Any, *, clear_cache: bool, mode: str = "keep") -> None:
    """Stops generation; with its cache dropped, a request that was kept is computed anew once it goes on.

    Args:
        engine: The ``AsyncLLM``. Ranks of one data-parallel group agree on a pause, so all of them must be asked together.
        clear_cache: Drop the KV cache.
        mode: What becomes of requests in flight: ``keep`` freezes, ``wait`` finishes, ``abort`` ends them.
    """
    await engine.pause_generation(mode=mode, clear_cache=clear_cache)


async def is_paused(engine: Any) -> bool:
    """Tells whether generation stands still."""
    return bool(await engine.is_paused())


async def resume(engine: Any) -> None:
    """Lets generation go on."""
    await engine.resume_generation()


async def abort_all(engine: Any) -> None:
    """Ends every request, also those that came in over HTTP; the engine stays paused.

    Pausing it with mode ``abort`` would do so too, but ranks of one data-parallel group agree on a pause, and here only one of
    them may have something to abort.
    """
    await engine.abort(list(engine.output_processor.request_states), internal=True)


async def join_collective(engine: Any, init_info: dict[str, Any]) -> None:
    """Has every engine process join the trainer's group."""
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

    await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))


async def update_weights(engine: Any, update_info: dict[str, Any], version: str) -> None:
    """Refits a paused engine through its native weight transfer.

    Args:
        engine: The ``AsyncLLM``.
        update_info: What `worker.transfer_engine.RefitUpdateInfo` holds.
        version: Label of the new weights; kept by engines that label what they generate (0.32).
    """
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    await engine.start_weight_update()
    await engine.update_weights(WeightTransferUpdateRequest(update_info=update_info))
    labels = "weight_version" in inspect.signature(engine.finish_weight_update).parameters
    await engine.finish_weight_update(**({"weight_version": version} if labels else {}))


async def refit_reports(engine: Any) -> list[dict[str, Any]]:
    """Asks every worker what the last refit did."""
    return await _ask_workers(engine, "report_refit")


async def verify_refit(engine: Any, update_info: dict[str, Any]) -> list[dict[str, str]]:
    """Has every worker compare its model with one that is loaded anew; returns what differs on each."""
    return await _ask_workers(engine, "verify_refit", update_info)


async def audit_weights(engine: Any, step: str) -> list[list[dict[str, Any]]]:
    """Has every worker do a step of the refit audit; `worker.parity.tensor_audit` says which there are."""
    return await _ask_workers(engine, "audit_weights", step)


async def device_ids(engine: Any) -> list[str]:
    """Asks every worker for its device."""
    return await _ask_workers(engine, "report_device")


async def ranks(engine: Any) -> list[int]:
    """Asks every worker for its rank."""
    return await _ask_workers(engine, "report_rank")


async def topology(engine: Any) -> list[dict[str, Any]]:
    """Asks every worker for its place in every parallel group, and for the experts that it holds."""
    return await _ask_workers(engine, "report_topology")


async def _ask_workers(engine: Any, method: str, *arguments: Any) -> list[Any]:
    """Asks every worker of every data-parallel rank that the engine owns; the engine's own call answers for the first alone."""
    client = engine.engine_core
    ranks = getattr(client, "core_engines", ())
    if len(ranks) < 2:
        return list(await engine.collective_rpc(method, args=arguments))
    calls = (client._call_utility_async("collective_rpc", method, None, arguments, {}, engine=rank) for rank in ranks)
    return [answer for answers in await asyncio.gather(*calls) for answer in answers]


async def sleep(engine: Any, level: int) -> None:
    """Gives memory back; what still runs is aborted."""
    await engine.reset_prefix_cache()
    await engine.reset_mm_cache()
    await engine.sleep(level=level)


async def wake_up(engine: Any, tags: Sequence[str] | None) -> None:
    """Takes memory again."""
    await engine.wake_up(tags=list(tags) if tags is not None else None)


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
        value = getattr(value, "value", value)  # of an enum, its text
        found[slot] = str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else value
    return found
