"""The settings that move parity: what to try instead of what is in force, what it takes, and why it matters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from quirks_core import sources
from quirks_core.config import GenerationConfig
from quirks_core.facts import RunContext
from quirks_core.flags import ModelFlag
from quirks_core.plan import Plan
from quirks_core.slots import checked_value
from worker.parity.records import JOINT, How

#: Before the id of a quirk that is switched on.
QUIRK = "quirk "

_BATCH_INVARIANT = "env.VLLM_BATCH_INVARIANT"
#: Other names that vLLM takes for a dtype.
_DTYPES = {"float": "float32", "half": "float16"}


@dataclass(frozen=True, slots=True)
class InForce:
    """What a run has before anything is tried."""

    #: by path; what the engine was asked for or, where nobody asked, what it reported. None is unknown.
    values: Mapping[str, Any]
    context: RunContext  #: the facts of the run
    compiles: bool  #: whether the environment lets torch compile

    @classmethod
    def of(cls, config: GenerationConfig, plan: Plan, engine: Mapping[str, Any] | None = None) -> InForce:
        """Reads it from a run.

        Args:
            config: The user's configuration.
            plan: The plan for it.
            engine: Values by slot that the running engine reported; they count where nobody asked for any.
        """
        paths = dict.fromkeys(path for setting in SETTINGS.values() for path in setting.paths)
        asked = {path: plan.value(path) for path in paths}
        reported = {path: value for path, value in (engine or {}).items() if asked.get(path) in (None, "auto")}
        variables = {**os.environ, **config.env}
        off = any(variables.get(name) == "1" for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"))
        return cls({**asked, **reported}, plan.context, compiles=not off)

    def value(self, path: str) -> Any:
        """Returns the value of a setting; None if it is not known."""
        return self.values.get(path)

    @property
    def is_refitted(self) -> bool:
        """A trainer sends weights."""
        return self.context.purpose == "rollout"

    def dtype(self, side: str) -> str | None:
        """What ``engine`` or ``train`` computes in; None if it cannot be told. A trainer left open follows the engine."""
        asked: str | None = self.value(f"{side}.dtype")
        if asked is not None and asked != "auto":
            return _DTYPES.get(asked, asked)
        if side == "train":
            return self.dtype("engine")
        text = self.context.model.text_config
        found: str | None = text.get("dtype") or text.get("torch_dtype")
        return found if found in ("bfloat16", "float16") else None  # what becomes of float32 depends on the platform


#: Returns the values to try, one for each path of a setting, given what is in force.
Alternatives: TypeAlias = Callable[[InForce], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that an ablation changes alone."""

    paths: tuple[str, ...]  #: keys of the configuration; several change together
    alternatives: Alternatives  #: the values to try
    how: How  #: what it takes to try one
    flag: ModelFlag  #: the flag of a quirk that would set it
    why: str  #: what it has to do with logprobs, in one line
    source: str  #: where that is known from
    lasting: tuple[Any, ...] = ()  #: values that leave a mark on the engine: nothing else may be tried on it afterwards
    #: values that show only on an engine that was never refitted otherwise, so that they take a restart
    fresh: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """Its path, or its paths."""
        return JOINT.join(self.paths)

    def tries(self, now: InForce) -> Iterator[tuple[tuple[Any, ...], How]]:
        """Yields the values to try, and what each takes. All differ from what is in force; of several paths, each."""
        for values in dict.fromkeys(self.alternatives(now)):
            if all(value != now.value(path) for path, value in zip(self.paths, values, strict=True)):
                yield values, "restart" if set(values) & set(self.fresh) else self.how


def changed(config: GenerationConfig, values: Mapping[str, Any]) -> GenerationConfig:
    """Returns a configuration as if the user had typed other values, by path (``engine.dtype``, ``env.NAME``).

    Raises:
        UsageError: There is no such key, or it does not take the value.
    """
    return config.adjusted({path: checked_value(path, value) for path, value in values.items()})


# ---- what to try


def _flipped(path: str, default: bool) -> Alternatives:
    """The other value of a switch; `default` is what it is if nobody asks."""

    def alternatives(now: InForce) -> list[tuple[Any, ...]]:
        value = now.value(path)
        return [(not (default if value is None else value),)]

    return alternatives


def _if_refitted(alternatives: Alternatives) -> Alternatives:
    return lambda now: alternatives(now) if now.is_refitted else []


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
        return []  # it has none, so that both mean the same
    return [("auto" if value == "vllm" else "vllm",)]


def _load_formats(now: InForce) -> list[tuple[Any, ...]]:
    return [("auto",)] if now.value("engine.load_format") == "dummy" else []


def _scopes(now: InForce) -> list[tuple[Any, ...]]:
    return [("parameters",)] if now.value("refit.scope") == "state_dict" else [("state_dict",)]


def _batch_invariant(now: InForce) -> list[tuple[Any, ...]]:
    exists = now.context.platform == "cuda" and sources.search("vllm.envs", r'"VLLM_BATCH_INVARIANT"')
    return [("0" if now.value(_BATCH_INVARIANT) == "1" else "1",)] if exists else []


_BLOG = "https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"
_ONE_SIDED = "https://github.com/NVIDIA-NeMo/RL/pull/3936"
_HEAD = "the head's rounding is the largest of all; float32 on one side only makes it worse"

_SETTINGS = (
    Setting(("engine.logprobs_mode",), _logprobs_modes, "restart", ModelFlag.LOGPROBS,
            "raw logprobs are those before temperature, penalties and top-k/p: not of the distribution that was sampled from",
            "https://github.com/huggingface/trl/issues/4159"),
    Setting(("refit.clear_cache",), _if_refitted(_flipped("refit.clear_cache", False)), "refit", ModelFlag.WEIGHT_SYNC,
            "a KV cache that outlives a refit was computed by the old weights", "https://github.com/NVIDIA-NeMo/RL/pull/4018"),
    Setting(("refit.scope",), _if_refitted(_scopes), "refit", ModelFlag.WEIGHT_SYNC,
            "a refit of parameters leaves persistent buffers as they were, after a dummy load as noise",
            "https://github.com/NVIDIA-NeMo/RL/issues/2631", lasting=("state_dict",), fresh=("parameters",)),
    Setting(("engine.load_format",), _load_formats, "restart", ModelFlag.LOAD_FORMAT,
            "what no refit sends keeps the noise of a dummy load", "https://github.com/NVIDIA-NeMo/RL/pull/298"),
    Setting(("engine.enable_prefix_caching",), _flipped("engine.enable_prefix_caching", True), "restart",
            ModelFlag.PREFIX_CACHE,
            "a prefix that is found in the cache may have been computed by other weights, and by other kernels", _BLOG),
    Setting(("engine.generation_config",), _generation_configs, "restart", ModelFlag.RUNTIME,
            "the checkpoint's generation_config.json changes how tokens are sampled where a request leaves it open",
            "https://github.com/vllm-project/vllm/pull/11164"),
    Setting(("engine.async_scheduling",), _flipped("engine.async_scheduling", True), "restart", ModelFlag.RUNTIME,
            "the engine plans a step before it has seen the tokens of the last one", _BLOG),
    Setting(("engine.enable_chunked_prefill",), _flipped("engine.enable_chunked_prefill", True), "restart", ModelFlag.RUNTIME,
            "a prompt that is split over several steps is summed up in another order, which recurrent models remember",
            "https://github.com/vllm-project/vllm/issues/42259"),
    Setting(("engine.enforce_eager",), _eager_or_compiled, "restart", ModelFlag.ENFORCE_EAGER,
            "eager execution, compiled code and CUDA graphs round differently",
            "https://github.com/vllm-project/vllm/issues/55238"),
    Setting(("engine.dtype",), _dtypes("engine"), "restart", ModelFlag.RUNTIME,
            "the engine's rounding; a trainer whose dtype is left open follows", _BLOG),
    Setting(("train.dtype",), _dtypes("train"), "rescore", ModelFlag.RUNTIME, "the trainer's rounding", _BLOG),
    Setting(("engine.dtype", "train.dtype"), _float32_on_both, "restart", ModelFlag.RUNTIME, "rounding as such", _BLOG),
    Setting(("engine.head_dtype",), _head("engine"), "restart", ModelFlag.LM_HEAD_DTYPE, _HEAD, _ONE_SIDED),
    Setting(("train.head_dtype",), _head("train"), "rescore", ModelFlag.LM_HEAD_DTYPE, _HEAD, _ONE_SIDED),
    Setting(("engine.head_dtype", "train.head_dtype"), _both_heads, "restart", ModelFlag.LM_HEAD_DTYPE,
            "both heads must round alike, and in float32 they hardly round", "https://github.com/vllm-project/vllm/pull/48390"),
    Setting(("engine.kv_cache_dtype",), _kv_cache_dtypes, "restart", ModelFlag.KV_CACHE,
            "keys and values that are kept in fewer bits come back as others",
            "https://docs.vllm.ai/en/stable/configuration/engine_args/"),
    Setting(("train.attn_implementation",), lambda _: [("eager",), ("sdpa",)], "rescore", ModelFlag.ATTENTION,
            "the trainer's attention sums up in another order, and may know no sliding window or soft cap",
            "https://huggingface.co/docs/transformers/attention_interface"),
    Setting((_BATCH_INVARIANT,), _batch_invariant, "restart", ModelFlag.ENVIRONMENT,
            "a token's logprob depends on what else is in the batch",
            "https://docs.vllm.ai/en/v0.32.0/features/batch_invariance/"),
)  # fmt: skip

#: Every setting by name; of equal cost, in the order in which they are tried.
SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _SETTINGS})
