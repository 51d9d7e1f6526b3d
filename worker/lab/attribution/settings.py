"""The settings that affect parity: which values to try, what a try needs, and why the setting matters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import checked_value
from quirks_core.configuration.variables import COMPILATION_SWITCHES
from quirks_core.facts.context import RunContext
from quirks_core.plan.records import Plan
from quirks_core.source.vllm_source import INSTALLED
from worker.lab.parity.records import JOINT, How

#: Before the id of a quirk that is switched on.
QUIRK = "quirk "

#: The variable of vLLM's batch-invariant mode, whose kernels give the same numbers for a token in every batch; and by platform,
#: the module of vLLM that reads it where the platform has the mode.
_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
_ITS_READERS = {"cuda": "vllm.envs", "rocm": "vllm.platforms.rocm", "xpu": "vllm.platforms.xpu"}
#: Other names that vLLM takes for a dtype.
_DTYPES = {"float": "float32", "half": "float16"}


@dataclass(frozen=True, slots=True)
class InForce:
    """The settings of a run before anything is changed."""

    #: by path: the value that the user or a quirk set, else the one that the engine reported; None is unknown
    values: Mapping[str, Any]
    context: RunContext  #: the facts of the run
    compiles: bool  #: whether the environment lets torch compile

    @classmethod
    def of(cls, config: GenerationConfig, plan: Plan, engine: Mapping[str, Any] | None = None) -> InForce:
        """Reads it from a run; what the engine reported, by slot, applies to slots that are not set."""
        paths = dict.fromkeys(path for setting in SETTINGS.values() for path in setting.paths)
        planned = {path: plan.value(path) for path in paths}
        reported = {path: value for path, value in (engine or {}).items() if planned.get(path) in (None, "auto")}
        variables = {**os.environ, **config.env}
        off = any(variables.get(name) == "1" for name in COMPILATION_SWITCHES)
        return cls({**planned, **reported}, plan.context, compiles=not off)

    def value(self, path: str) -> Any:
        """Returns the value of a setting; None if it is not known."""
        return self.values.get(path)

    def dtype(self, side: str) -> str | None:
        """The dtype of ``engine`` or ``train``; None if it is unknown. An unset ``train.dtype`` is the engine's."""
        wanted: str | None = self.value(f"{side}.dtype")
        if wanted is not None and wanted != "auto":
            return _DTYPES.get(wanted, wanted)
        if side == "train":
            return self.dtype("engine")
        text = self.context.loaded.text_config
        found: str | None = text.get("dtype") or text.get("torch_dtype")
        return found if found in ("bfloat16", "float16") else None  # the dtype for a float32 checkpoint depends on the platform


#: Returns the values to try, one for each path of a setting, given what is in force.
Alternatives: TypeAlias = Callable[[InForce], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What an ablation changes in one step: a setting, or several together."""

    paths: tuple[str, ...]  #: keys of the configuration; several change together
    alternatives: Alternatives  #: the values to try
    how: How  #: what is needed to try one
    why: str  #: how it affects logprobs, in one line

    @property
    def name(self) -> str:
        """Its path, or its paths."""
        return JOINT.join(self.paths)

    def tries(self, now: InForce) -> Iterator[tuple[Any, ...]]:
        """Yields the values to try. All differ from the current values; with several paths, each does."""
        for values in dict.fromkeys(self.alternatives(now)):
            if all(value != now.value(path) for path, value in zip(self.paths, values, strict=True)):
                yield values


def changed(config: GenerationConfig, values: Mapping[str, Any]) -> GenerationConfig:
    """Returns a configuration as if the user had typed other values, by path (``engine.dtype``, ``env.NAME``).

    Raises:
        UsageError: There is no such key, or it does not take the value.
    """
    return config.adjusted({path: checked_value(path, value) for path, value in values.items()})


# ---- what to try


def _flipped(path: str, default: bool) -> Alternatives:
    """The other value of a switch; `default` applies if it is not set."""

    def alternatives(now: InForce) -> list[tuple[Any, ...]]:
        value = now.value(path)
        return [(not (default if value is None else value),)]

    return alternatives


def _other(path: str, first: str, second: str) -> Alternatives:
    """The second of two values where it is not in force, else the first."""
    return lambda now: [(first if now.value(path) == second else second,)]


def _if_refitted(alternatives: Alternatives) -> Alternatives:
    return lambda now: alternatives(now) if now.context.purpose == "rollout" else []


def _logprobs_modes(now: InForce) -> list[tuple[Any, ...]]:
    mode = now.value("engine.logprobs_mode") or "raw_logprobs"
    if mode in ("raw_logits", "processed_logits"):  # no logprobs at all
        return [("processed_logprobs",), ("raw_logprobs",)]
    return [("raw_logprobs" if mode == "processed_logprobs" else "processed_logprobs",)]


def _eager_or_compiled(now: InForce) -> list[tuple[Any, ...]]:
    if now.value("engine.enforce_eager"):
        return [(False,)] if now.compiles else []
    return [(True,)]


def _dtypes(side: str) -> Alternatives:
    return lambda now: [(dtype,) for dtype in ("float32", "bfloat16") if dtype != now.dtype(side)]


def _float32_on_both(now: InForce) -> list[tuple[Any, ...]]:
    follows = now.value("train.dtype") is None  # then engine.dtype alone changes both
    return [] if follows or "float32" in (now.dtype("engine"), now.dtype("train")) else [("float32", "float32")]


def _head(side: str) -> Alternatives:
    """The other dtype of one head; a model in float32 has no other."""

    def alternatives(now: InForce) -> list[tuple[Any, ...]]:
        if now.dtype(side) == "float32":
            return []
        return [("model" if now.value(f"{side}.head_dtype") == "float32" else "float32",)]

    return alternatives


def _both_heads(now: InForce) -> list[tuple[Any, ...]]:
    tried = [_head(side)(now) for side in ("engine", "train")]
    return [(*engine, *train) for engine, train in zip(*tried, strict=False) if engine == train]


def _kv_cache_dtypes(now: InForce) -> list[tuple[Any, ...]]:
    return [] if now.value("engine.kv_cache_dtype") in (None, "auto", now.dtype("engine")) else [("auto",)]


def _generation_configs(now: InForce) -> list[tuple[Any, ...]]:
    value = now.value("engine.generation_config")
    folder = Path(now.context.model.path).expanduser()
    if value in (None, "auto", "vllm") and folder.is_dir() and not (folder / "generation_config.json").is_file():
        return []  # without that file both values mean the same
    return [("auto" if value == "vllm" else "vllm",)]


def _batch_invariant(now: InForce) -> list[tuple[Any, ...]]:
    reader = _ITS_READERS.get(now.context.platform or "")
    if reader is None or not INSTALLED.search(reader, _BATCH_INVARIANT):
        return []
    return [("0" if now.value(f"env.{_BATCH_INVARIANT}") == "1" else "1",)]


_HEAD = "the head rounds its logits; float32 on one side leaves the rounding of the other"

#: Where no other report is named: https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections.
_SETTINGS = (
    Setting(("engine.logprobs_mode",), _logprobs_modes, "restart",  # huggingface/trl#4159
            "raw logprobs are computed before temperature, penalties and top-k/p: not of the sampled distribution"),
    Setting(("refit.clear_cache",), _if_refitted(_flipped("refit.clear_cache", False)), "restart",
            "a KV cache that is kept over a refit was computed with the old weights"),  # NVIDIA-NeMo/RL#4018
    Setting(("refit.scope",), _if_refitted(_other("refit.scope", "parameters", "state_dict")), "restart",  # NVIDIA-NeMo/RL#2631
            "a refit of parameters does not update persistent buffers; after a dummy load they are noise"),
    Setting(("engine.load_format",), lambda now: [("auto",)] if now.value("engine.load_format") == "dummy" else [], "restart",
            "tensors that no refit sends keep the noise of a dummy load"),  # NVIDIA-NeMo/RL#298
    Setting(("engine.enable_prefix_caching",), _flipped("engine.enable_prefix_caching", True), "restart",
            "a prefix from the cache may have been computed with other weights or other kernels"),
    Setting(("engine.generation_config",), _generation_configs, "restart",  # vllm-project/vllm#11164
            "the checkpoint's generation_config.json changes sampling parameters that a request does not set"),
    Setting(("engine.async_scheduling",), _flipped("engine.async_scheduling", True), "restart",
            "the engine schedules a step before the tokens of the previous one are known"),
    # vllm-project/vllm#42259
    Setting(("engine.enable_chunked_prefill",), _flipped("engine.enable_chunked_prefill", True), "restart",
            "a prompt split over several steps is summed in another order, and recurrent models carry the difference on"),
    Setting(("engine.enforce_eager",), _eager_or_compiled, "restart",
            "eager execution, compiled code and CUDA graphs round differently"),  # vllm-project/vllm#55238
    Setting(("engine.dtype",), _dtypes("engine"), "restart",
            "the engine's rounding; an unset train.dtype follows it"),
    Setting(("train.dtype",), _dtypes("train"), "rescore", "the trainer's rounding"),
    Setting(("engine.dtype", "train.dtype"), _float32_on_both, "restart", "rounding on both sides"),
    Setting(("engine.head_dtype",), _head("engine"), "restart", _HEAD),  # NVIDIA-NeMo/RL#3936
    Setting(("train.head_dtype",), _head("train"), "rescore", _HEAD),  # NVIDIA-NeMo/RL#3936
    Setting(("engine.head_dtype", "train.head_dtype"), _both_heads, "restart",
            "both heads must round in the same way; in float32 rounding is negligible"),  # vllm-project/vllm#48390
    Setting(("engine.kv_cache_dtype",), _kv_cache_dtypes, "restart",
            "keys and values stored in fewer bits are rounded"),
    Setting(("train.attn_implementation",), lambda _: [("eager",), ("sdpa",)], "rescore",
            "the trainer's attention sums in another order, and may not support sliding windows or soft caps"),
    Setting((f"env.{_BATCH_INVARIANT}",), _batch_invariant, "restart",
            "a token's logprob depends on what else is in the batch"),
)  # fmt: skip

#: Every setting by name; of equal cost, in the order in which they are tried.
SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _SETTINGS})
