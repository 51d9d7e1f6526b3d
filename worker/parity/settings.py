"""The settings that move parity: what to try instead of what is in force, what it takes, and why it matters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from quirks_core import sources
from quirks_core.context import RunContext
from quirks_core.flags import ModelFlag
from quirks_core.plan import Plan
from worker.config import GenerationConfig

#: What it takes to try a value, from cheap to dear: another pass of the trainer, another refit, another engine.
How: TypeAlias = Literal["rescore", "refit", "restart"]

#: Between the parts of a setting that is several.
JOINT = " + "
#: Before the id of a quirk that is switched on.
QUIRK = "quirk "

_BATCH_INVARIANT = "env.VLLM_BATCH_INVARIANT"
#: Other names that vLLM takes for a dtype.
_DTYPES = {"float": "float32", "half": "float16"}
_BLOG = "https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"
_ONE_SIDED = "https://github.com/NVIDIA-NeMo/RL/pull/3936"


@dataclass(frozen=True, slots=True)
class InForce:
    """What a run has before anything is tried.

    Attributes:
        values: By path; what the engine was asked for or, where nobody asked, what it reported. None is unknown.
        context: The facts of the run.
        compiles: Whether the environment lets torch compile.
    """

    values: Mapping[str, Any]
    context: RunContext
    compiles: bool

    @classmethod
    def of(cls, config: GenerationConfig, plan: Plan, engine: Mapping[str, Any] | None = None) -> InForce:
        """Reads it from a run.

        Args:
            config: The user's configuration.
            plan: The plan for it.
            engine: Values by slot that the running engine reported; they count where nobody asked for any.
        """
        paths = dict.fromkeys(path for setting in SETTINGS.values() for path in setting.paths)
        variables = {**os.environ, **config.env}
        off = any(variables.get(name) == "1" for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"))
        return cls({path: _value(path, plan, engine or {}) for path in paths}, plan.context, compiles=not off)

    def value(self, path: str) -> Any:
        """Returns the value of a setting; None if it is not known."""
        return self.values.get(path)

    @property
    def engine_dtype(self) -> str | None:
        """What the engine computes in; None if it cannot be told."""
        asked: str | None = self.value("engine.dtype")
        if asked is not None and asked != "auto":
            return _DTYPES.get(asked, asked)
        text = self.context.model.text_config
        found: str | None = text.get("dtype") or text.get("torch_dtype")
        return found if found in ("bfloat16", "float16") else None  # what becomes of float32 depends on the platform

    @property
    def train_dtype(self) -> str | None:
        """What the trainer computes in: the engine's dtype if it is left open."""
        asked: str | None = self.value("train.dtype")
        return asked or self.engine_dtype

    def dtype(self, side: str) -> str | None:
        """What ``engine`` or ``train`` computes in."""
        return self.engine_dtype if side == "engine" else self.train_dtype


#: Returns the values to try, one for each path of a setting, given what is in force.
Alternatives: TypeAlias = Callable[[InForce], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that the ladder changes alone.

    Attributes:
        paths: Keys of the configuration; several change together.
        alternatives: The values to try.
        how: What it takes to try one.
        why: What it has to do with logprobs, in one line.
        source: Where that is known from.
        flag: The flag of a quirk that would set it.
        lasting: Values that leave a mark on the engine: nothing else may be tried on it afterwards.
        fresh: Values that show only on an engine that was never refitted otherwise, so that they take a restart.
    """

    paths: tuple[str, ...]
    alternatives: Alternatives
    how: How
    why: str
    source: str
    flag: ModelFlag
    lasting: tuple[Any, ...] = ()
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


def parts(setting: str, value: Any) -> list[tuple[str, Any]]:
    """Splits a setting that is several, and its value, which is a list then."""
    names = setting.split(JOINT)
    values = [value] if len(names) == 1 else list(value) if isinstance(value, list | tuple) else [None] * len(names)
    return list(zip(names, values, strict=True))


def changed(config: GenerationConfig, values: Mapping[str, Any]) -> GenerationConfig:
    """Returns a configuration as if the user had typed other values.

    Args:
        config: The configuration.
        values: By path (``engine.dtype``, ``env.NAME``); None leaves a key open.

    Raises:
        UsageError: The configuration does not take a value.
    """
    nested = config.model_dump(exclude_unset=True)
    for path, value in values.items():
        section, _, key = path.partition(".")
        inside = nested.setdefault(section, {})
        if value is None:
            inside.pop(key, None)
        else:
            inside[key] = value
    return GenerationConfig.parse(nested)


def _value(path: str, plan: Plan, engine: Mapping[str, Any]) -> Any:
    if path.startswith("env."):
        return plan.context.environment.get(path.removeprefix("env."))
    asked = plan.value(path)
    return engine.get(path, asked) if asked in (None, "auto") else asked


def _flipped(path: str, default: bool, *, refits: bool = False) -> Alternatives:
    """The other value of a switch; `default` is what it is if nobody asks."""

    def alternatives(now: InForce) -> list[tuple[Any, ...]]:
        value = now.value(path)
        return [] if refits and not _is_refitted(now) else [(not (default if value is None else value),)]

    return alternatives


def _is_refitted(now: InForce) -> bool:
    return now.context.purpose == "rollout"


def _logprobs_modes(now: InForce) -> list[tuple[Any, ...]]:
    mode = now.value("engine.logprobs_mode") or "raw_logprobs"
    if mode in ("raw_logits", "processed_logits"):  # no logprobs at all
        return [("processed_logprobs",), ("raw_logprobs",)]
    return [("raw_logprobs" if mode == "processed_logprobs" else "processed_logprobs",)]


def _eager_or_compiled(now: InForce) -> list[tuple[Any, ...]]:
    if now.value("engine.enforce_eager"):
        return [(False,)] if now.compiles else []
    return [(True,)]


def _engine_dtypes(now: InForce) -> list[tuple[Any, ...]]:
    return [(dtype,) for dtype in ("float32", "bfloat16") if dtype != now.engine_dtype]


def _train_dtypes(now: InForce) -> list[tuple[Any, ...]]:
    return [(dtype,) for dtype in ("float32", "bfloat16") if dtype != now.train_dtype]


def _float32_on_both(now: InForce) -> list[tuple[Any, ...]]:
    open_or_same = now.value("train.dtype") is None  # then the trainer follows the engine
    return [] if open_or_same or "float32" in (now.engine_dtype, now.train_dtype) else [("float32", "float32")]


def _head(side: str) -> Alternatives:
    """The other dtype of one head; a model in float32 has no other."""

    def alternatives(now: InForce) -> list[tuple[Any, ...]]:
        if now.dtype(side) == "float32":
            return []
        return [("model" if now.value(f"{side}.head_dtype") == "float32" else "float32",)]

    return alternatives


def _both_heads(now: InForce) -> list[tuple[Any, ...]]:
    tried = [list(_head(side)(now)) for side in ("engine", "train")]
    return [(*engine, *train) for engine, train in zip(*tried, strict=False) if engine == train]


def _kv_cache_dtypes(now: InForce) -> list[tuple[Any, ...]]:
    return [] if now.value("engine.kv_cache_dtype") in (None, "auto", now.engine_dtype) else [("auto",)]


def _generation_configs(now: InForce) -> list[tuple[Any, ...]]:
    value = now.value("engine.generation_config")
    folder = Path(now.context.model.path).expanduser()
    if value in (None, "auto", "vllm") and folder.is_dir() and not (folder / "generation_config.json").is_file():
        return []  # it has none, so that both mean the same
    return [("auto" if value == "vllm" else "vllm",)]


def _load_formats(now: InForce) -> list[tuple[Any, ...]]:
    return [("auto",)] if now.value("engine.load_format") == "dummy" else []


def _scopes(now: InForce) -> list[tuple[Any, ...]]:
    if not _is_refitted(now):
        return []
    return [("parameters",)] if now.value("refit.scope") == "state_dict" else [("state_dict",)]


def _attentions(_: InForce) -> list[tuple[Any, ...]]:
    return [("eager",), ("sdpa",)]


def _batch_invariant(now: InForce) -> list[tuple[Any, ...]]:
    exists = now.context.platform == "cuda" and sources.search("vllm.envs", r'"VLLM_BATCH_INVARIANT"')
    return [("0" if now.value(_BATCH_INVARIANT) == "1" else "1",)] if exists else []


_SETTINGS = (
    Setting(
        ("engine.logprobs_mode",),
        _logprobs_modes,
        "restart",
        "raw logprobs are those before temperature, penalties and top-k/p: not of the distribution that was sampled from",
        "https://github.com/huggingface/trl/issues/4159",
        ModelFlag.LOGPROBS,
    ),
    Setting(
        ("refit.clear_cache",),
        _flipped("refit.clear_cache", False, refits=True),
        "refit",
        "a KV cache that outlives a refit was computed by the old weights",
        "https://github.com/NVIDIA-NeMo/RL/pull/4018",
        ModelFlag.WEIGHT_SYNC,
    ),
    Setting(
        ("refit.scope",),
        _scopes,
        "refit",
        "a refit of parameters leaves persistent buffers as they were, after a dummy load as noise",
        "https://github.com/NVIDIA-NeMo/RL/issues/2631",
        ModelFlag.WEIGHT_SYNC,
        lasting=("state_dict",),
        fresh=("parameters",),
    ),
    Setting(
        ("engine.load_format",),
        _load_formats,
        "restart",
        "what no refit sends keeps the noise of a dummy load",
        "https://github.com/NVIDIA-NeMo/RL/pull/298",
        ModelFlag.LOAD_FORMAT,
    ),
    Setting(
        ("engine.enable_prefix_caching",),
        _flipped("engine.enable_prefix_caching", True),
        "restart",
        "a prefix that is found in the cache may have been computed by other weights, and by other kernels",
        _BLOG,
        ModelFlag.PREFIX_CACHE,
    ),
    Setting(
        ("engine.generation_config",),
        _generation_configs,
        "restart",
        "the checkpoint's generation_config.json changes how tokens are sampled where a request leaves it open",
        "https://github.com/vllm-project/vllm/pull/11164",
        ModelFlag.RUNTIME,
    ),
    Setting(
        ("engine.async_scheduling",),
        _flipped("engine.async_scheduling", True),
        "restart",
        "the engine plans a step before it has seen the tokens of the last one",
        _BLOG,
        ModelFlag.RUNTIME,
    ),
    Setting(
        ("engine.enable_chunked_prefill",),
        _flipped("engine.enable_chunked_prefill", True),
        "restart",
        "a prompt that is split over several steps is summed up in another order, which recurrent models remember",
        "https://github.com/vllm-project/vllm/issues/42259",
        ModelFlag.RUNTIME,
    ),
    Setting(
        ("engine.enforce_eager",),
        _eager_or_compiled,
        "restart",
        "eager execution, compiled code and CUDA graphs round differently",
        "https://github.com/vllm-project/vllm/issues/55238",
        ModelFlag.ENFORCE_EAGER,
    ),
    Setting(
        ("engine.dtype",),
        _engine_dtypes,
        "restart",
        "the engine's rounding; a trainer whose dtype is left open follows",
        _BLOG,
        ModelFlag.RUNTIME,
    ),
    Setting(("train.dtype",), _train_dtypes, "rescore", "the trainer's rounding", _BLOG, ModelFlag.RUNTIME),
    Setting(("engine.dtype", "train.dtype"), _float32_on_both, "restart", "rounding as such", _BLOG, ModelFlag.RUNTIME),
    Setting(
        ("engine.head_dtype",),
        _head("engine"),
        "restart",
        "the head's rounding is the largest of all; float32 on one side only makes it worse",
        _ONE_SIDED,
        ModelFlag.LM_HEAD_DTYPE,
    ),
    Setting(
        ("train.head_dtype",),
        _head("train"),
        "rescore",
        "the head's rounding is the largest of all; float32 on one side only makes it worse",
        _ONE_SIDED,
        ModelFlag.LM_HEAD_DTYPE,
    ),
    Setting(
        ("engine.head_dtype", "train.head_dtype"),
        _both_heads,
        "restart",
        "both heads must round alike, and in float32 they hardly round",
        "https://github.com/vllm-project/vllm/pull/48390",
        ModelFlag.LM_HEAD_DTYPE,
    ),
    Setting(
        ("engine.kv_cache_dtype",),
        _kv_cache_dtypes,
        "restart",
        "keys and values that are kept in fewer bits come back as others",
        "https://docs.vllm.ai/en/stable/configuration/engine_args/",
        ModelFlag.KV_CACHE,
    ),
    Setting(
        ("train.attn_implementation",),
        _attentions,
        "rescore",
        "the trainer's attention sums up in another order, and may know no sliding window or soft cap",
        "https://huggingface.co/docs/transformers/attention_interface",
        ModelFlag.ATTENTION,
    ),
    Setting(
        (_BATCH_INVARIANT,),
        _batch_invariant,
        "restart",
        "a token's logprob depends on what else is in the batch",
        "https://docs.vllm.ai/en/v0.32.0/features/batch_invariance/",
        ModelFlag.ENVIRONMENT,
    ),
)

#: Every setting by name; of equal cost, in the order in which they are tried.
SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _SETTINGS})
