"""Settings that are known to move tokens or logprobs: what each of them changes, and where a user sets it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from quirks_core.registry import Registry
from worker.parity.records import Coverage

#: What a setting changes: what a logprob *means*, how it is *computed*, or which tokens are *drawn*.
Concern = Literal["meaning", "computation", "draw"]


@dataclass(frozen=True, slots=True)
class Known:
    """One setting of the engine that is known to matter.

    Attributes:
        slot: Where a user sets it; empty if nowhere.
        concern: What it changes.
        why: How, in one line.
    """

    slot: str
    concern: Concern
    why: str


_HIT = "a prefix hit reuses keys and values that were computed in another batch, or under older weights"
_SHAPES = "other batch shapes take other kernels, and sums come in another order"
_CACHE = "keys and values are rounded to another dtype"
_COMPILED = "compiled and captured code fuses operations, and rounds elsewhere"
_KERNELS = "another kernel sums in another order"
_DRAWN = "a request that leaves it open is sampled from another distribution"

#: By the names of `worker.parity.effective.effective`; the first matter most. A name that ends in a dot stands for all below.
KNOWN: Mapping[str, Known] = MappingProxyType(
    {
        "model_config.logprobs_mode": Known(
            "engine.logprobs_mode", "meaning", "raw logprobs are those before temperature, penalties and top-k/p"
        ),
        "sampling_defaults.": Known("engine.generation_config", "draw", _DRAWN),
        "model_config.generation_config": Known("engine.generation_config", "draw", _DRAWN),
        "model_config.override_generation_config": Known("engine.vllm_kwargs", "draw", _DRAWN),
        "model_config.logits_processors": Known("engine.vllm_kwargs", "draw", "logits are changed before sampling"),
        "model_config.seed": Known("engine.seed", "draw", "requests without a seed of their own draw other numbers"),
        "model_config.use_fp64_gumbel": Known("engine.vllm_kwargs", "draw", "random numbers have another precision"),
        "model_config.dtype": Known("engine.dtype", "computation", "weights and activations are rounded to another dtype"),
        "model_config.head_dtype": Known("engine.head_dtype", "computation", "logits are computed in another dtype"),
        "model_config.quantization": Known("engine.vllm_kwargs", "computation", "weights are quantised in another way"),
        "quantization": Known("engine.vllm_kwargs", "computation", "weights are quantised in another way"),
        "cache_config.cache_dtype": Known("engine.kv_cache_dtype", "computation", _CACHE),
        "cache_config.enable_prefix_caching": Known("engine.enable_prefix_caching", "computation", _HIT),
        "scheduler_config.async_scheduling": Known(
            "engine.async_scheduling", "computation", "steps overlap, so that requests meet in other batches"
        ),
        "scheduler_config.enable_chunked_prefill": Known("engine.enable_chunked_prefill", "computation", _SHAPES),
        "model_config.disable_cascade_attn": Known("engine.vllm_kwargs", "computation", "shared prefixes take another kernel"),
        "attention_config.": Known("engine.vllm_kwargs", "computation", _KERNELS),
        "model_config.enforce_eager": Known("engine.enforce_eager", "computation", _COMPILED),
        "compilation_config.": Known("engine.compilation_config", "computation", _COMPILED),
        "kernel_config.": Known("engine.vllm_kwargs", "computation", _KERNELS),
        "mamba_config.": Known("engine.vllm_kwargs", "computation", _KERNELS),
        "model_config.model_impl": Known("engine.vllm_kwargs", "computation", "the model is another implementation"),
        "model_config.hf_text_config.": Known("engine.hf_overrides", "computation", "config.json is read differently"),
        "model_config.disable_sliding_window": Known("engine.vllm_kwargs", "computation", "layers see other tokens"),
        "cache_config.block_size": Known("engine.vllm_kwargs", "computation", _SHAPES),
        "cache_config.mamba_": Known("engine.vllm_kwargs", "computation", _CACHE),
        "scheduler_config.max_num_batched_tokens": Known("engine.vllm_kwargs", "computation", _SHAPES),
        "scheduler_config.max_num_seqs": Known("engine.max_num_seqs", "computation", _SHAPES),
        "parallel_config.tensor_parallel_size": Known(
            "engine.tensor_parallel_size", "computation", "partial sums of other ranks are added up"
        ),
        "parallel_config.enable_expert_parallel": Known("engine.enable_expert_parallel", "computation", _KERNELS),
        "parallel_config.disable_custom_all_reduce": Known("engine.vllm_kwargs", "computation", _KERNELS),
        "speculative_config": Known("engine.vllm_kwargs", "draw", "draft tokens use up random numbers"),
        "env.VLLM_BATCH_INVARIANT": Known("", "computation", _KERNELS),
        "env.VLLM_USE_FLASHINFER_SAMPLER": Known("", "draw", "another sampler draws other tokens from the same numbers"),
        "env.VLLM_ENFORCE_STRICT_TOOL_CALLING": Known("", "draw", "grammar masks change the sampled distribution"),
        "env.VLLM_USE_V2_MODEL_RUNNER": Known("", "computation", "another model runner builds the batches"),
        "env.VLLM_USE_DEEP_GEMM": Known("", "computation", _KERNELS),
        "env.VLLM_MLA_DISABLE": Known("", "computation", _KERNELS),
        "env.NVIDIA_TF32_OVERRIDE": Known("", "computation", "matrix products are rounded to TF32"),
        "env.CUBLAS_WORKSPACE_CONFIG": Known("", "computation", _KERNELS),
        "env.OMP_NUM_THREADS": Known("", "computation", "sums are split over another number of threads"),
    }
)
_ORDER = {name: number for number, name in enumerate(KNOWN)}
#: Parts of the sections above that only say when or where something is compiled.
_HARMLESS = frozenset(
    {
        "compilation_config.compile_cache_save_format",
        "compilation_config.cudagraph_num_of_warmups",
        "kernel_config.enable_cutedsl_warmup",
        "kernel_config.enable_jit_warmup",
    }
)


def known(name: str) -> Known | None:
    """Returns what is known of a setting; None if nothing is."""
    key = _key(name)
    return None if key is None else KNOWN[key]


def is_exact(name: str) -> bool:
    """Tells whether a setting is known by its own name, and not as one of a section."""
    return name in KNOWN


def rank(name: str) -> int:
    """Returns where a known setting stands among `KNOWN`; the first matter most."""
    return _ORDER[_key(name) or next(reversed(_ORDER))]


def _key(name: str) -> str | None:
    if name in KNOWN:
        return name
    return next((key for key in KNOWN if key.endswith((".", "_")) and name.startswith(key) and name not in _HARMLESS), None)


def quirks_that_set(slot: str, registry: Registry, a: Container[str], b: Container[str]) -> tuple[Coverage, ...]:
    """Returns the quirks that set a slot.

    Args:
        slot: Its name.
        registry: The quirks of this installation.
        a: Ids of the quirks in force on one side.
        b: Those of the other.
    """
    found = []
    for item in registry.loaded:
        if any(getattr(adjustment, "slot", None) == slot for adjustment in item.quirk.adjustments):
            where = [side for side, ids in (("A", a), ("B", b)) if item.quirk.id in ids]
            state = f"in force in {' and '.join(where)}" if where else "in force in neither"
            found.append(Coverage(id=item.quirk.id, state=state, because=item.quirk.title))
    return tuple(found)
