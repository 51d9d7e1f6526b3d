"""The facts of one run: the model, the installed packages, the settings, and which of them the user typed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from pydantic import Field, PrivateAttr, field_serializer

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.configuration import variables
from quirks_core.configuration.config import GenerationConfig, Purpose
from quirks_core.configuration.slots import SLOTS, Place, Slot, engine_problem, is_slot, placed, slot_around, slot_named
from quirks_core.configuration.yaml_file import read_value
from quirks_core.facts.checkpoint import CHECKPOINT_FACTS, Checkpoint
from quirks_core.facts.model import ModelFacts
from quirks_core.facts.model_config import overridden
from quirks_core.facts.model_runner import MODEL_RUNNER, Runner, model_runner
from quirks_core.facts.packages import (
    CPU_FEATURES,
    cpu_features,
    distribution_of,
    gpu_capability,
    installed_platform,
    installed_version,
    installed_versions,
    parse_assumptions,
)
from quirks_core.facts.unknown import UNKNOWN, Facts
from quirks_core.source.vllm_source import INSTALLED, VllmSource

#: Variables with these prefixes are facts of every run; others only if a quirk reads them or the configuration sets them.
_FAMILIES_OF_VARIABLES = ("NCCL_", "NRL_", "VLLM_")
_OVERRIDES = "engine.hf_overrides"
#: Prefix of the facts about the features of the CPU.
_CPU = "platform.cpu."
_GPU = "platform.gpu.capability"


class InstalledFacts(Facts, Protocol):
    """Facts that include what is installed."""

    @property
    def source(self) -> VllmSource:
        """The source of the vLLM that the facts speak of."""

    def source_known(self, package: str) -> bool:
        """Returns whether the package's source on this machine is that of the version the facts speak of."""


class Installation:
    """The facts that are the same for every run on this installation; all others are unknown.

    Args:
        versions: Versions by package, to assume instead of the installed ones; the source of these versions is unknown.
    """

    source = INSTALLED

    def __init__(self, versions: Mapping[str, str] | None = None) -> None:
        self._versions = versions

    def fact(self, name: str) -> Any:
        """Returns the platform, a feature of the CPU or a package's version."""
        package = name.removeprefix("packages.")
        if name.startswith(_CPU) and self._versions is None:
            return _feature(cpu_features(), name)
        if name == "platform" and self._versions is None:
            found = installed_platform()
        elif package == name:
            found = None
        else:
            found = installed_version(package) if self._versions is None else self._versions.get(package)
        return UNKNOWN if found is None else found

    def source_known(self, package: str) -> bool:
        """Returns whether the package is installed, and its version is not assumed."""
        return self._versions is None and installed_version(package) is not None


class RunContext(Record):
    """The frozen facts of one run; matching uses nothing else.

    Attributes:
        purpose: ``rollout`` (a trainer will refit), ``eval`` or ``serve``.
        recipe: Name of the training recipe, if the user gave one.
        model: Facts of the checkpoint.
        settings: The value of every slot of the configuration before quirks: typed, or the configuration's default.
        typed: The slots whose value the user typed, without those that the value leaves to vLLM (``engine.dtype=auto``).
        undeclared: The slots that belong to a program that did not declare them (a trainer, a client): they are unknown, which
            is something else than left open.
        sources: Where values were read that nobody typed, by slot: a trainer's own objects in this process, or what was read of
            it. They are no part of a plan's digest.
        packages: Versions by package; a package that is missing is not installed.
        assumed: The packages whose version, and the facts whose value, was assumed (``--assume``) rather than read.
        platform: Platform of the installed engine; None if it is unknown.
        cpu: The CPU's features (`quirks_core.facts.packages.CPU_FEATURES`), on the CPU platform; None elsewhere, or if unknown.
        gpu: Compute capability of the GPUs, times ten, if a quirk reads it; None elsewhere, or if it is unknown.
        environment: The user's environment variables that quirks may match on.
        extra: Facts that plugins added, by ``distribution.name``, and those that were assumed.
    """

    purpose: Purpose = "rollout"
    recipe: str | None = None
    model: ModelFacts
    settings: dict[str, Any] = Field(default_factory=dict)
    typed: frozenset[str] = frozenset()
    undeclared: frozenset[str] = frozenset()
    sources: dict[str, str] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    platform: str | None = None
    cpu: frozenset[str] | None = None
    gpu: int | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)

    #: Where further files of the checkpoint are, read when a quirk needs their content; None in a run that is made up.
    _checkpoint: Checkpoint | None = PrivateAttr(default=None)
    _source: VllmSource = PrivateAttr(default=INSTALLED)

    @field_serializer("typed", "undeclared", "assumed", "cpu", when_used="json")
    def _in_order(self, names: frozenset[str] | None) -> list[str] | None:
        """Sorts sets: their order differs between processes, but the JSON and its digest must not."""
        return None if names is None else sorted(names)

    @classmethod
    def gather(
        cls,
        config: GenerationConfig,
        *,
        fact_names: Iterable[str] = (),
        assume: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
        source: VllmSource = INSTALLED,
    ) -> RunContext:
        """Gathers the facts of a run: reads files and metadata, imports nothing, changes nothing.

        Args:
            config: The user's configuration.
            fact_names: Names of the facts that quirks read: only these packages and variables, and the common ones, are read.
            assume: What to assume instead of what is here, as `parse_assumptions` reads it.
            environ: The process environment; `os.environ` if None.
            source: The vLLM of the run.

        Raises:
            UsageError: The model cannot be read, the installed vLLM does not take an engine argument that the user typed, or an
                assumption makes no sense.
        """
        fact_names = frozenset(fact_names)
        packages = {name.removeprefix("packages.") for name in fact_names if name.startswith("packages.")}
        assumable = {name: spec.takes for name, spec in FACTS.items() if spec.takes is not None}
        assumed = parse_assumptions(assume, packages, assumable)
        extra = {name: _assumed(name, assumable[name], text) for name, text in assumed.facts.items()}
        platform = assumed.platform or installed_platform()
        found = {name: text for name in packages if (text := installed_version(name)) is not None}
        settings = {name: value for name, value in config.slots().items() if is_slot(name)}
        arguments = placed(Place.ARGUMENT, settings)
        left_open = {f"engine.{name}" for name, value in arguments.items() if source.arguments.leaves_open(name, value)}
        context = cls(
            purpose=config.purpose,
            recipe=config.recipe,
            model=ModelFacts.read(config.model.path, config.model.revision),
            settings=settings,
            typed=frozenset(filter(is_slot, config.typed_slots())) - left_open,  # dtype=auto is no choice
            undeclared=config.undeclared_slots(),
            sources=dict(config.sources),
            packages={**found, **installed_versions(), **assumed.versions},
            assumed=frozenset({*assumed.versions, *extra, *([_GPU] if assumed.gpu else [])}),
            platform=platform,
            cpu=(cpu_features() if assumed.cpu is None else assumed.cpu) if platform == "cpu" else None,
            gpu=(assumed.gpu or gpu_capability()) if platform == "cuda" and _GPU in fact_names else None,
            environment=_variables(config, fact_names, os.environ if environ is None else environ),
            extra=extra,
        )
        place = config.model
        context._checkpoint = Checkpoint(place.path, place.revision, place.tokenizer, context.model.config)
        context._source = source
        context._check_engine_arguments()
        return context

    def fact(self, name: str) -> Any:
        """Returns a fact by its dotted name.

        Returns:
            None for a fact that is known to be absent (a slot left open, a variable not set), and `UNKNOWN` for one that
            no value is known.
        """
        if name in self.extra:
            return self.extra[name]
        if name in FACTS:
            return FACTS[name].read(self)
        if name in SLOTS:
            return UNKNOWN if name in self.undeclared else self.settings.get(name)
        family, _, rest = name.partition(".")
        match family:
            case "typed":
                return self.is_typed(rest)
            case "env":
                return self.environment.get(rest)
            case "packages":
                return self.packages.get(distribution_of(rest), UNKNOWN)
            case "model" if rest.startswith("quantization."):
                return _walk(self.loaded.quantization, rest.split(".")[1:])
            case "model" if rest.startswith("text_config."):
                return _walk(self.loaded.text_config, rest.split(".")[1:])
            case "model" if rest.startswith("config."):
                return _walk(self.loaded.config, rest.split(".")[1:])
            case "engine" if is_slot(name):
                # An argument that the installed vLLM does not have is not the same as an argument that is not set.
                is_there = not self.source_known("vllm") or rest in (self.source.arguments.names() or (rest,))
                return self.settings.get(name, None if is_there else UNKNOWN)
            case "engine" if (slot := slot_around(name)) != name:
                return _walk(self.fact(slot), name.removeprefix(f"{slot}.").split("."))
        return UNKNOWN

    @property
    def loaded(self) -> ModelFacts:
        """The model as the engine loads it: with ``engine.hf_overrides`` as the user typed them."""
        changes = self.settings.get(_OVERRIDES)
        if not changes or not isinstance(changes, dict):
            return self.model
        return self.model.model_copy(update={"config": overridden(self.model.config, changes)})

    @property
    def source(self) -> VllmSource:
        """The source of the run's vLLM; it counts only where `source_known` is true."""
        return self._source

    def value(self, slot: str) -> Any:
        """Returns the value of a slot before quirks; None if it is not set."""
        is_variable = slot_named(slot).place is Place.VARIABLE
        return self.environment.get(slot_named(slot).key) if is_variable else self.settings.get(slot)

    def with_values(self, values: Mapping[str, Any]) -> RunContext:
        """Returns the facts of the run in which slots have these values, as far as the engine's process can set them."""
        set_here = {name: value for name, value in values.items() if slot_named(name).is_enforced}
        variables_ = placed(Place.VARIABLE, set_here)
        settings = {name: value for name, value in set_here.items() if slot_named(name).place is not Place.VARIABLE}
        return self.model_copy(update={"settings": self.settings | settings, "environment": self.environment | variables_})

    def is_typed(self, slot: str) -> bool:
        """Returns whether the user typed a slot's value; a variable that is set counts as typed."""
        return slot in self.typed or (slot_named(slot).place is Place.VARIABLE and slot_named(slot).key in self.environment)

    @property
    def typed_arguments(self) -> dict[str, Any]:
        """The engine arguments that the user typed, by vLLM's name."""
        return placed(Place.ARGUMENT, {slot: self.value(slot) for slot in sorted(self.typed)})

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The engine arguments that the user typed and could not be checked against vLLM, because its source is not here."""
        if self.source_known("vllm"):
            return ()
        return tuple(sorted(name for name in self.typed - SLOTS.keys() if slot_named(name).place is Place.ARGUMENT))

    def source_known(self, package: str) -> bool:
        """Returns whether the package's source on this machine is that of the version the context speaks of."""
        return package not in self.assumed and package in self.packages

    @property
    def unread_environment(self) -> tuple[str, ...] | None:
        """The ``VLLM_*`` variables that the user set and the installed engine does not read; None if that is unknown."""
        given = [name for name in self.environment if name.startswith("VLLM_")]
        if not given:
            return ()
        return self.source.unread_by_engine(given) if self.source_known("vllm") else None

    def _check_engine_arguments(self) -> None:
        if not self.source_known("vllm"):
            return
        problems = (engine_problem(name, self.settings[name], self.source) for name in sorted(self.typed))
        if wrong := list(filter(None, problems)):
            raise UsageError("; ".join(wrong))


@dataclass(frozen=True, slots=True)
class FactSpec:
    """One fact that every run has.

    Attributes:
        name: Its name; for a family of facts, the prefix of their names.
        help: What it means.
        read: Reads it from a run.
        unknown: When it is unknown; empty if every run has it.
        takes: What it takes if it is assumed, as an annotation; None if ``--assume`` does not take its name.
    """

    name: str
    help: str
    read: Callable[[RunContext], Any] = lambda _: UNKNOWN
    unknown: str = ""
    takes: Any = None


def _assumed(name: str, takes: Any, text: str) -> Any:
    """The value of a fact that is assumed."""
    try:
        value = read_value(text)
    except ValueError as error:
        raise UsageError(f"--assume {name}: {error}") from None
    if problem := Slot(name, takes).problem(value):
        raise UsageError(f"--assume: {problem}")
    return value


def _known(value: Any) -> Any:
    return UNKNOWN if value is None else value


def _size(*slots: str) -> Callable[[RunContext], int]:
    """The product of parallel sizes; a size that is not set counts as 1."""

    def read(context: RunContext) -> int:
        product = 1
        for slot in slots:
            product *= context.settings.get(f"engine.{slot}_parallel_size") or 1
        return product

    return read


def _num_gpus(context: RunContext) -> int | None:
    gpus = context.settings.get("cluster.gpus_per_node")
    return None if gpus is None else gpus * (context.settings.get("cluster.num_nodes") or 1)


def _of_checkpoint(name: str) -> Callable[[RunContext], Any]:
    def read(context: RunContext) -> Any:
        return UNKNOWN if context._checkpoint is None else context._checkpoint.fact(name)

    return read


def _of_cpu(name: str, context: RunContext) -> Any:
    return _feature(context.cpu, name)


def _feature(features: frozenset[str] | None, name: str) -> Any:
    return UNKNOWN if features is None else name.removeprefix(_CPU) in features


def _model_type(context: RunContext) -> Any:
    types = context.loaded.model_types
    return UNKNOWN if not types else types[0] if len(types) == 1 else types


def _is_moe(context: RunContext) -> Any:
    return UNKNOWN if context.loaded.num_experts is UNKNOWN else context.loaded.is_moe


#: vLLM's own names of a dtype beside torch's.
_ALIASES = {"half": "float16", "float": "float32"}
#: Where vLLM looks for a checkpoint's dtype, the first that is there.
_DTYPE_KEYS = ("dtype", "torch_dtype")


def _engine_computes_in(context: RunContext) -> Any:
    """The dtype of the engine's products: ``engine.dtype``, or what vLLM's ``auto`` makes of the checkpoint's."""
    given = context.settings.get("engine.dtype")
    if given not in (None, "auto"):
        return _ALIASES.get(given, given)
    found = next(
        (part[key] for part in (context.loaded.config, context.loaded.text_config) for key in _DTYPE_KEYS if part.get(key)),
        None,
    )
    return "bfloat16" if found == "float32" else found


def _trainer_computes_in(context: RunContext) -> Any:
    """The dtype of the trainer's products: that of autocast, or of its weights."""
    products = context.fact("train.autocast")
    return context.fact("train.dtype") if products in (None, "none") else products


_NO_TYPE = "config.json gives neither model_type nor architectures"
_NO_COUNT = "config.json gives no number of experts, and either no model_type or one of a MoE model"

_NO_FILE = {
    "model": "the file cannot be read",
    "tokenizer": "tokenizer_config.json or, where it is needed, tokenizer.json is missing or cannot be read",
}

#: The facts with fixed names. Slots are facts as well, and so are the members of `FAMILIES`.
FACTS: Mapping[str, FactSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            FactSpec("purpose", "rollout, eval or serve", lambda run: run.purpose),
            FactSpec("recipe", "name of the training recipe", lambda run: run.recipe),
            FactSpec(
                "platform",
                "cpu, cuda, rocm or xpu: what the installed engine is built for",
                lambda run: _known(run.platform),
                "no engine is installed, or its version does not say",
            ),
            *(
                FactSpec(
                    f"{_CPU}{feature}",
                    f"the CPU has {feature}; on the CPU platform",
                    partial(_of_cpu, f"{_CPU}{feature}"),
                    "another platform, or the CPU is no x86, or its features cannot be read",
                )
                for feature in CPU_FEATURES
            ),
            FactSpec(
                _GPU,
                "compute capability of the NVIDIA GPUs, times ten (Hopper: 90); on the CUDA platform",
                lambda run: _known(run.gpu),
                "another platform, no GPU in the process that plans, or GPUs of several kinds",
            ),
            FactSpec(
                MODEL_RUNNER,
                "v1 or v2: which of vLLM's model runners the engine uses",
                lambda run: model_runner(run, run.loaded),
                "a platform or release that was not read, or what decides (the model, drafts, another argument) cannot be told",
                Runner,
            ),
            FactSpec(
                "engine.computes_in",
                "dtype of the engine's products: engine.dtype, or what vLLM makes of the checkpoint's; absent if both are open",
                _engine_computes_in,
            ),
            FactSpec(
                "train.computes_in",
                "dtype of the trainer's products: train.autocast, or that of its weights; absent if both are open",
                _trainer_computes_in,
            ),
            FactSpec("model.name", "hub id or folder name", lambda run: run.model.name),
            FactSpec(
                "model.model_type",
                "model_type of config.json; several where architectures, by which vLLM goes, names another one",
                _model_type,
                _NO_TYPE,
                str,
            ),
            FactSpec("model.architectures", "architectures of config.json", lambda run: run.loaded.architectures),
            FactSpec("model.is_moe", "the model has more than one expert", _is_moe, _NO_COUNT, bool),
            FactSpec(
                "model.num_experts",
                "routed experts of a MoE layer, the most of any",
                lambda run: run.loaded.num_experts,
                _NO_COUNT,
                int,
            ),
            FactSpec(
                "model.head_size",
                "width of an attention head: head_dim, or hidden_size / num_attention_heads; absent without such heads",
                lambda run: run.loaded.head_size,
            ),
            FactSpec(
                "model.is_quantized",
                "the weights are quantised, by config.json or hf_quant_config.json, and engine.hf_overrides has not emptied it",
                lambda run: run.loaded.is_quantized,
            ),
            FactSpec("model.is_multimodal", "the model accepts image or audio input", lambda run: run.loaded.is_multimodal),
            *(
                FactSpec(name, help_, _of_checkpoint(name), _NO_FILE[name.partition(".")[0]], takes)
                for name, (help_, _, takes) in CHECKPOINT_FACTS.items()
            ),
            FactSpec("parallel.replica_size", "TP x PP: ranks that hold one copy of the model", _size("tensor", "pipeline")),
            FactSpec(
                "parallel.expert_group_size",
                "DP x TP: ranks over which one vLLM data-parallel group spreads its experts",
                _size("data", "tensor"),
            ),
            FactSpec("parallel.num_ranks", "DP x TP x PP", _size("data", "tensor", "pipeline")),
            FactSpec("cluster.num_gpus", "nodes x GPUs of each; absent where no number of GPUs is configured", _num_gpus),
            FactSpec(
                "environment.unread",
                "VLLM_* variables that are set and that the installed engine does not read",
                lambda run: _known(run.unread_environment),
                "vLLM is not installed, or its version is assumed",
                list[str],
            ),
        )
    }
)
#: Families of facts: a prefix with any name after it.
FAMILIES = (
    FactSpec("typed.", "the user typed the value of that slot"),
    FactSpec("env.", "an environment variable that the user set, in the shell or in the configuration's section env"),
    FactSpec(
        "engine.",
        "an argument of vLLM that the user typed; also a key in its value, nested ones with dots; of a list, that of each item",
        unknown="the installed vLLM has no such argument",
    ),
    FactSpec("packages.", "the installed version of a distribution", unknown="it is not installed"),
    FactSpec(
        "model.quantization.",
        "a key of how the weights are quantised, wherever the checkpoint keeps it, with quant_method as vLLM completes it",
    ),
    FactSpec("model.text_config.", "a key of the language model's part of config.json, wherever that is, or else of the whole"),
    FactSpec("model.config.", "a key of config.json, nested ones with dots, after engine.hf_overrides as typed"),
)


def is_known_fact(name: str) -> bool:
    """Returns whether a run has a fact of that name without plugins."""
    if name in FACTS or name in SLOTS:
        return True
    family = next((spec.name for spec in FAMILIES if name.startswith(spec.name)), "")
    if family == "typed.":
        return is_slot(name.removeprefix(family))
    return bool(family) and (family not in ("engine.", "env.") or is_slot(slot_around(name)))


def assumed_as(name: str) -> str:
    """Returns the name under which ``--assume`` takes a fact; empty if it does not."""
    for prefix, short in (("packages.", ""), (_CPU, "cpu"), (_GPU, "gpu")):
        if name.startswith(prefix):
            return short or name.removeprefix(prefix)
    return name if name == "platform" or (name in FACTS and FACTS[name].takes is not None) else ""


def always_known(name: str) -> bool:
    """Returns whether every run knows the fact (also as absent), so that a condition on it is never unknown."""
    if name in FACTS:
        return not FACTS[name].unknown
    if slot_around(name) in SLOTS:
        return True
    return is_known_fact(name) and not any(spec.unknown for spec in FAMILIES if name.startswith(spec.name))


def _variables(config: GenerationConfig, fact_names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that plans depend on. The configuration overrides the shell, as it does in the engine."""
    return planned_variables([*fact_names, *(f"env.{name}" for name in config.env)], {**environ, **config.env})


def planned_variables(fact_names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that plans depend on.

    Args:
        fact_names: Names of the facts that quirks read.
        environ: The environment.
    """
    slots = (slot_named(name.removeprefix("typed.")) for name in fact_names)
    wanted = {slot.key for slot in slots if slot.place is Place.VARIABLE}
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in wanted or name.startswith(_FAMILIES_OF_VARIABLES)) and variables.reason_to_refuse(name) is None
    }


def _walk(value: Any, keys: list[str]) -> Any:
    for key in keys if value is not UNKNOWN else ():
        if isinstance(value, list):  # the value of each of its mappings
            value = [item[key] for item in value if isinstance(item, dict) and key in item] or None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value
