"""The closed set of slots: everything that a quirk may adjust, under the name the user would type in a configuration.

A slot's name is a path into `worker.config.GenerationConfig` (``engine.load_format``), so ``--set slot=value``, a YAML file
and a quirk speak of the same thing. ``env.*`` slots are variables of the environment that every engine process starts with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any

from quirks_core.errors import UsageError, nearest, shown
from quirks_core.plain import is_plain, plain


class SlotKind(StrEnum):
    """How the wishes of several quirks for one slot become one value (see `quirks_core.merge`)."""

    SCALAR = auto()  #: equal wishes are credited to all, unequal ones are a conflict
    AT_MOST = auto()  #: an upper bound; the smallest wins
    AT_LEAST = auto()  #: a lower bound; the largest wins
    SET = auto()  #: members; all are in
    MAPPING = auto()  #: each key is a scalar of its own, nested mappings too


@dataclass(frozen=True, slots=True)
class Slot:
    """One adjustable setting.

    Attributes:
        name: Dotted name.
        type: The Python type of its value; of a set, the type of its members.
        help: What it sets, in one line.
        choices: The values it can take; empty if any value of the type will do.
        kind: How several wishes become one value.
    """

    name: str
    type: type
    help: str
    choices: tuple[str, ...] = ()
    kind: SlotKind = SlotKind.SCALAR

    def problem(self, value: object) -> str | None:
        """Says what is wrong with a value, or None if the slot can take it."""
        if self.kind is SlotKind.SET:
            if not isinstance(value, list | tuple | set | frozenset):
                return f"{self.name} takes a list of {self.type.__name__}, not {shown(value)}"
            return next((problem for member in value if (problem := self._problem_of_one(member))), None)
        if self.kind is SlotKind.MAPPING and isinstance(value, Mapping):
            return None if is_plain(value) else f"{self.name} takes JSON values with texts as keys, not {shown(value)}"
        return self._problem_of_one(value)

    def _problem_of_one(self, value: object) -> str | None:
        number = self.type is float and isinstance(value, int) and not isinstance(value, bool)
        if not number and (not isinstance(value, self.type) or (isinstance(value, bool) and self.type is not bool)):
            return f"{self.name} takes a value of type {self.type.__name__}, not {shown(value)}"
        if not is_plain(value):
            return f"{self.name} takes a value that JSON can hold, not {shown(value)}"
        if self.choices and value not in self.choices:
            return f"{self.name} takes one of {', '.join(self.choices)}, not {value!r}{nearest(str(value), self.choices)}"
        return None

    def plain(self, value: Any) -> Any:
        """Returns a value that the slot can take as JSON gives it back: a copy, of Python's own types."""
        if self.kind is SlotKind.SET:
            return sorted(set(plain(list(value))))
        found = plain(value)
        return float(found) if self.type is float else found  # 600 and 600.0 are the same wish


#: What a language-model head computes in: float32, or the dtype of the model.
HEAD_DTYPES = ("float32", "model")

_SLOTS = (
    Slot("cluster.gpus_per_node", int, "GPUs of each node"),
    Slot("cluster.num_nodes", int, "number of nodes"),
    Slot("engine.async_engine", bool, "asynchronous engine (AsyncLLM) instead of the synchronous one"),
    Slot("engine.async_scheduling", bool, "plan the next step while the device works on this one"),
    Slot("engine.compilation_config", dict, "vLLM's compilation settings", kind=SlotKind.MAPPING),
    Slot("engine.data_parallel_size", int, "data-parallel ranks, of one engine or of several (parallel.dp_strategy)"),
    Slot("engine.dtype", str, "dtype of the weights; auto takes the checkpoint's"),
    Slot("engine.enable_chunked_prefill", bool, "split long prompts over several steps"),
    Slot("engine.enable_expert_parallel", bool, "shard experts over data x tensor parallel ranks"),
    Slot("engine.enable_prefix_caching", bool, "reuse the KV cache of shared prefixes"),
    Slot("engine.enable_sleep_mode", bool, "lets sleep_async give memory back while the trainer works; GPUs only"),
    Slot("engine.enforce_eager", bool, "eager execution: no compilation, no CUDA graphs"),
    Slot("engine.generation_config", str, "defaults of requests: auto (the checkpoint's), vllm (none), or a folder's"),
    Slot("engine.gpu_memory_utilization", float, "share of device memory the engine may use; at most", kind=SlotKind.AT_MOST),
    Slot("engine.head_dtype", str, "dtype of the language-model head's product, and of the logits", HEAD_DTYPES),
    Slot("engine.hf_overrides", dict, "changes to the checkpoint's config.json", kind=SlotKind.MAPPING),
    Slot("engine.kv_cache_dtype", str, "dtype of the KV cache; auto takes the weights'"),
    Slot("engine.load_format", str, "where weights come from at start: auto (the checkpoint), dummy (random), …"),
    Slot(
        "engine.logprobs_mode",
        str,
        "what a logprob means: before (raw) or after (processed) temperature, penalties and top-k/p",
        ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"),
    ),
    Slot("engine.max_model_len", int, "longest sequence, prompt and generation together, in tokens"),
    Slot("engine.max_num_seqs", int, "sequences that one step may hold; at most", kind=SlotKind.AT_MOST),
    Slot("engine.pipeline_parallel_size", int, "pipeline-parallel ranks"),
    Slot("engine.runtime", str, "vLLM's runtime", ("v0", "v1")),
    Slot("engine.seed", int, "seed of the engine's random numbers"),
    Slot("engine.tensor_parallel_size", int, "tensor-parallel ranks"),
    Slot("env.VLLM_USE_V1", str, "selects vLLM's runtime; read by vLLM before V0 was removed", ("0", "1")),
    Slot("parallel.distinct_seeds", bool, "every engine of a group has a seed of its own: engine.seed + its rank"),
    Slot(
        "parallel.dp_strategy",
        str,
        "data-parallel ranks as one engine per actor in one group, as one engine, or as engines that share nothing",
        ("actors", "engine", "independent"),
    ),
    Slot("parallel.expert_parallel_size", int, "ranks that share the experts of a MoE model"),
    Slot("refit.clear_cache", bool, "drop the KV cache at a refit: requests in flight are computed anew under the new weights"),
    Slot(
        "refit.scope",
        str,
        "what a refit sends: named parameters only, or the whole state dict with its persistent buffers",
        ("parameters", "state_dict"),
    ),
    Slot("request.timeout_s", float, "seconds after which a rollout request is given up; at least", kind=SlotKind.AT_LEAST),
    Slot("sampling.stop_token_ids", int, "tokens that end a generation, besides the model's own", kind=SlotKind.SET),
    Slot("sampling.temperature", float, "temperature of sampling; 0 is greedy"),
    Slot("sampling.top_k", int, "number of most probable tokens to sample from; -1 for all"),
    Slot("sampling.top_p", float, "smallest share of probability to sample from"),
    Slot("train.attn_implementation", str, "the trainer's attention", ("eager", "flash_attention_2", "sdpa")),
    Slot("train.backend", str, "the trainer's parallelism", ("fsdp2", "megatron")),
    Slot("train.context_parallel_size", int, "the trainer's context-parallel ranks"),
    Slot("train.dtype", str, "dtype of the trainer's forward pass", ("bfloat16", "float16", "float32")),
    Slot("train.head_dtype", str, "dtype of the trainer's language-model head and logits", HEAD_DTYPES),
    Slot("train.sequence_packing", bool, "the trainer packs several sequences into one row"),
    Slot("train.sequence_parallel", bool, "the trainer shards activations along the sequence over its TP ranks"),
    Slot("train.tensor_parallel_size", int, "the trainer's tensor-parallel ranks"),
)


#: Every slot by name, in alphabetical order.
SLOTS = MappingProxyType({slot.name: slot for slot in _SLOTS})


def find_slot(name: str) -> Slot:
    """Returns the slot of that name.

    Raises:
        UsageError: There is none; the message names the nearest one.
    """
    try:
        return SLOTS[name]
    except KeyError:
        raise UsageError(f"unknown slot {name!r}{nearest(name, SLOTS)}") from None


def checked_value(name: str, value: Any) -> Any:
    """Returns the value if the slot can take it.

    Raises:
        UsageError: The slot does not exist or does not take this value.
    """
    if problem := find_slot(name).problem(value):
        raise UsageError(problem)
    return value
