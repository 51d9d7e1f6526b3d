"""Settings that are known to change tokens or logprobs: and what each of them affects."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from worker.lab.attribution.settings import SETTINGS

#: What a setting changes: what a logprob *means*, how it is *computed*, or which tokens are *drawn*.
Concern = Literal["meaning", "computation", "draw"]

_SHAPES = "other batch shapes use other kernels, which sum in another order"
_CACHE = "keys and values are rounded to another dtype"
_COMPILED = "compiled and captured code fuses operations and rounds at other places"
_KERNELS = "another kernel sums in another order"
_DRAWN = "requests that do not set it are sampled from another distribution"
_WEIGHTS = "weights are quantised in another way"

#: Concern and reason by the names of `worker.lab.compare.effective`; the most important come first. A name that ends in a
#: dot or an underscore is a prefix.
KNOWN: Mapping[str, tuple[Concern, str]] = MappingProxyType(
    {
        "model_config.logprobs_mode": ("meaning", SETTINGS["engine.logprobs_mode"].why),
        "sampling_defaults.": ("draw", _DRAWN),
        "model_config.generation_config": ("draw", SETTINGS["engine.generation_config"].why),
        "model_config.override_generation_config": ("draw", _DRAWN),
        "model_config.logits_processors": ("draw", "logits are changed before sampling"),
        "model_config.seed": ("draw", "requests without their own seed use other random numbers"),
        "model_config.use_fp64_gumbel": ("draw", "random numbers have another precision"),
        "model_config.dtype": ("computation", SETTINGS["engine.dtype"].why),
        "model_config.head_dtype": ("computation", SETTINGS["engine.head_dtype"].why),
        "model_config.quantization": ("computation", _WEIGHTS),
        "quantization": ("computation", _WEIGHTS),
        "cache_config.cache_dtype": ("computation", SETTINGS["engine.kv_cache_dtype"].why),
        "cache_config.enable_prefix_caching": ("computation", SETTINGS["engine.enable_prefix_caching"].why),
        "scheduler_config.async_scheduling": ("computation", SETTINGS["engine.async_scheduling"].why),
        "scheduler_config.enable_chunked_prefill": ("computation", SETTINGS["engine.enable_chunked_prefill"].why),
        "model_config.disable_cascade_attn": ("computation", "shared prefixes use another kernel"),
        "attention_config.": ("computation", _KERNELS),
        "model_config.enforce_eager": ("computation", SETTINGS["engine.enforce_eager"].why),
        "compilation_config.": ("computation", _COMPILED),
        "kernel_config.": ("computation", _KERNELS),
        "mamba_config.": ("computation", _KERNELS),
        "model_config.model_impl": ("computation", "the model is another implementation"),
        "model_config.hf_text_config.": ("computation", "config.json is read differently"),
        "model_config.disable_sliding_window": ("computation", "layers see other tokens"),
        "cache_config.block_size": ("computation", _SHAPES),
        "cache_config.mamba_": ("computation", _CACHE),
        "scheduler_config.max_num_batched_tokens": ("computation", _SHAPES),
        "scheduler_config.max_num_seqs": ("computation", _SHAPES),
        "parallel_config.tensor_parallel_size": ("computation", "partial sums are split over the ranks in another way"),
        "parallel_config.enable_expert_parallel": ("computation", _KERNELS),
        "parallel_config.disable_custom_all_reduce": ("computation", _KERNELS),
        "speculative_config": ("draw", "draft tokens consume random numbers"),
        "env.VLLM_BATCH_INVARIANT": ("computation", SETTINGS["env.VLLM_BATCH_INVARIANT"].why),
        "env.VLLM_USE_FLASHINFER_SAMPLER": ("draw", "another sampler selects other tokens for the same random numbers"),
        "env.VLLM_ENFORCE_STRICT_TOOL_CALLING": ("draw", "grammar masks change the sampled distribution"),
        "env.VLLM_USE_V2_MODEL_RUNNER": ("computation", "another model runner builds the batches"),
        "env.VLLM_USE_DEEP_GEMM": ("computation", _KERNELS),
        "env.VLLM_MLA_DISABLE": ("computation", _KERNELS),
        "env.NVIDIA_TF32_OVERRIDE": ("computation", "matrix products are rounded to TF32"),
        "env.CUBLAS_WORKSPACE_CONFIG": ("computation", _KERNELS),
        "env.OMP_NUM_THREADS": ("computation", "sums are split over another number of threads"),
    }
)  # fmt: skip


def key(name: str) -> str | None:
    """Returns the key of `KNOWN` for a setting; None if nothing is known about it."""
    if name in KNOWN:
        return name
    return next((key for key in KNOWN if key.endswith((".", "_")) and name.startswith(key)), None)
