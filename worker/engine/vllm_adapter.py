"""The one module that knows vLLM's moving API; written for 0.26 to 0.33. An ``engine`` is an ``AsyncLLM``.

Nothing of vLLM is imported before a function that needs it runs: vLLM reads environment variables while it is imported,
and the plan must have set them by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.sections import SamplingSection
from quirks_core.configuration.slots import Place, placed
from quirks_core.hook.worker_calls import METHOD
from quirks_core.plan.records import Plan
from worker.engine.engine_rank import EngineRank

#: What the quirk ``coalesced-outputs`` adds to the engine core; an engine whose plan adds it holds outputs of marked requests.
COUNTS_HELD = "vllm.v1.engine.core:EngineCore.generated_so_far"
#: Marks a request whose caller reads nothing before it finishes.
_COALESCE = "model_quirks_coalesce"


def engine_arguments(
    config: GenerationConfig, plan: Plan, *, in_placement_group: bool = False, engine_rank: EngineRank | None = None
) -> dict[str, Any]:
    """Returns arguments of ``AsyncEngineArgs``, as the user typed them or the plan sets them; what is left open is missing.

    Args:
        config: The configuration, with what the plan changes.
        plan: The plan for it.
        in_placement_group: The worker owns bundles of a Ray placement group.
        engine_rank: Which engine of a group it is; None if it is alone.
    """
    arguments: dict[str, Any] = {
        "model": config.model.path,
        "tokenizer": config.model.tokenizer,
        "revision": config.model.revision,
        "disable_log_stats": True,
        **_executor(config, in_placement_group, shared=engine_rank is None or engine_rank.strategy != "independent"),
    }
    engine = placed(Place.ARGUMENT, {f"engine.{name}": value for name, value in config.engine})
    arguments |= {**engine, "load_format": plan.value("engine.load_format")}
    if config.engine.head_dtype:  # vLLM reads it from the checkpoint's configuration
        arguments["hf_overrides"] = {**(config.engine.hf_overrides or {}), "head_dtype": config.engine.head_dtype}
    if engine_rank is not None:
        arguments |= {**_rank_arguments(engine_rank, arguments, plan), **config.engine.further}
    return {key: value for key, value in arguments.items() if value is not None}


def _rank_arguments(engine_rank: EngineRank, arguments: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Returns what makes an engine one of a group."""
    found: dict[str, Any] = {}
    if engine_rank.engines > 1 and plan.value("parallel.distinct_seeds"):
        found["seed"] = (arguments.get("seed") or 0) + engine_rank.rank
    if engine_rank.strategy == "independent":
        found["data_parallel_size"] = 1
    elif engine_rank.strategy == "actors" and engine_rank.engines > 1:
        found["data_parallel_rank"] = engine_rank.rank  # vLLM's external load balancing: one frontend for each rank
        found["data_parallel_address"] = engine_rank.address
        found["data_parallel_rpc_port"] = engine_rank.port
    return found


def _executor(config: GenerationConfig, in_placement_group: bool, *, shared: bool) -> dict[str, str]:
    """Names the executor: left open, vLLM silently takes Ray for several ranks inside a placement group."""
    ranks = config.engine.tensor_parallel_size * config.engine.pipeline_parallel_size
    if in_placement_group and ranks > 1:
        return {"distributed_executor_backend": "ray"}
    if ranks * (config.engine.data_parallel_size if shared else 1) > 1:
        return {"distributed_executor_backend": "mp"}
    return {}


async def call_workers(engine: Any, function: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what `quirks_core.hook.worker_calls.call` did in every worker of every data-parallel rank of the engine."""
    call = (function, list(arguments), dict(named))
    if len(getattr(engine.engine_core, "core_engines", ())) < 2:
        return list(await engine.collective_rpc(METHOD, args=call))
    return await _of_all_ranks(engine, "collective_rpc", METHOD, None, call, {})


async def _of_all_ranks(engine: Any, method: str, *arguments: Any) -> list[Any]:
    """Calls a method of every rank's engine core, and joins their lists; vLLM's own calls answer for the first rank alone."""
    client = engine.engine_core
    calls = (client._call_utility_async(method, *arguments, engine=rank) for rank in client.core_engines)
    return [item for answer in await asyncio.gather(*calls) for item in answer]


def start_engine(arguments: Mapping[str, Any], carrying: Callable[[Any], Any]) -> Any:
    """Starts an ``AsyncLLM``; blocks until all its processes are up, 20 to 60 s on two CPU cores.

    Call it on the event loop that will use the engine. What is left open of the size of a step is what ``LLM`` takes: by
    itself ``AsyncLLM`` holds 128 requests in a step, where ``LLM`` and ``vllm serve`` hold 1024 on an H200. `carrying` puts a
    plan on the arguments (`quirks_core.hook.in_force.AppliedQuirks.carried_by`).
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(carrying(AsyncEngineArgs(**arguments)), usage_context=UsageContext.LLM_CLASS)


def stop_engine(engine: Any, timeout_s: float | None = None) -> None:
    """Ends an ``AsyncLLM`` for good.

    Its ``__del__`` shuts it down once more; at the interpreter's end, when vLLM's modules are empty, that prints a traceback.
    """
    engine.shutdown(timeout=timeout_s)
    engine.shutdown = lambda: None


def sampling_params(
    sampling: SamplingSection,
    *,
    greedy: bool,
    max_tokens: int,
    stop: Sequence[str] = (),
    seed: int | None = None,
    text: bool = False,
    coalesce: bool = False,
) -> Any:
    """Builds the parameters of one request, for the cheapest way to tokens and their logprobs.

    ``logprobs=0`` gives the sampled token's logprob alone, flat logprobs save one dictionary per token, without
    detokenization no text is made, and final-only output is assembled once. By itself vLLM still sends every token across the
    process border; with `coalesce`, which marks the request for the quirk ``coalesced-outputs``, and without stop strings the
    output crosses it once.
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
        extra_args={_COALESCE: True} if coalesce else None,
    )


def encoded(tokenizer: Any, text: str, special: str = "once") -> list[int]:
    """Turns a text into token ids, with special tokens around it as ``tokenizer.add_special_tokens`` says."""
    again = special == "once" and bool(bos := tokenizer.bos_token) and text.startswith(bos)
    return list(tokenizer.encode(text, add_special_tokens=special != "never" and not again))


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
    ``logprobs_mode`` is.
    """
    # With prompt_logprobs=0 each position but the first holds exactly one entry, the prompt's own token.
    return [0.0, *map(float, output.prompt_logprobs.logprobs)]


def sampled_logprobs(completion: Any) -> list[float]:
    """Returns the logprob of every generated token of a vLLM ``CompletionOutput``."""
    if completion.logprobs is None:
        return []
    # With logprobs=0 each position holds exactly one entry, the sampled token's.
    return [float(value) for value in completion.logprobs.logprobs]


def routed_experts(output: Any) -> Any:
    """Returns the experts of each token of a vLLM ``RequestOutput``, [tokens, MoE layers, top-k]; None if it has none."""
    parts = getattr(output, "prompt_routed_experts", None), output.outputs[0].routed_experts  # the first one until vLLM 0.30
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


async def generated_so_far(engine: Any, *, coalesces: bool) -> list[int]:
    """Returns how many tokens each request has that is being worked on; if held (`coalesces`), the core alone knows of them."""
    if coalesces:
        return await _of_all_ranks(engine, COUNTS_HELD.rpartition(".")[2])
    return [state.detokenizer.num_output_tokens() for state in engine.output_processor.request_states.values()]


def model_dtype(engine: Any) -> str:
    """Returns the dtype that the engine computes in, as ``bfloat16``."""
    return str(engine.model_config.dtype).removeprefix("torch.")


def labels_tokens() -> bool:
    """Returns whether the installed vLLM reports which weights made a token (0.32)."""
    from vllm.outputs import CompletionOutput

    return "weight_versions" in getattr(CompletionOutput, "__dataclass_fields__", {})


def version_spans(completion: Any, version: str) -> list[tuple[str, int, int]]:
    """Returns which weights made which tokens of a vLLM ``CompletionOutput``: ``(version, start, end)`` spans, in order.

    An engine that labels nothing (0.26) is taken to have used the weights of now, `version`, throughout.
    """
    spans = getattr(completion, "weight_versions", None)
    if not spans:
        return [(version, 0, len(completion.token_ids))]
    return [(span.version, span.start, span.end) for span in spans]


async def hold(engine: Any, *, clear_cache: bool) -> None:
    """Pauses for a refit: as ``pause_generation`` does, without the 20 ms for which it waits so that outputs come first."""
    if clear_cache:
        await engine.renderer.clear_mm_cache_async()
    await engine.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear_cache)


async def label_weights(engine: Any, version: str) -> None:
    """Gives a paused engine the label of its new weights; only some engines label what they generate (0.32)."""
    if hasattr(engine.engine_core, "set_weight_version_async"):
        await engine.engine_core.set_weight_version_async(version)


async def sleep(engine: Any, level: int) -> None:
    """Gives memory back; what still runs is aborted."""
    await engine.reset_prefix_cache()
    await engine.reset_mm_cache()
    await engine.sleep(level=level)
