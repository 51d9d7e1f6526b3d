"""The facts of one run: the model, the installed packages, the settings, and which of them the user typed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from pydantic import Field, PrivateAttr, field_serializer

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.configuration import variables
from quirks_core.configuration.config import GenerationConfig, Purpose
from quirks_core.configuration.slots import SLOTS, Place, engine_problem, is_slot, placed, slot_around, slot_named
from quirks_core.facts.checkpoint import CHECKPOINT_FACTS, Checkpoint
from quirks_core.facts.model_config import QUANTIZATION_KEYS, config_file, overridden, read_config
from quirks_core.facts.model_runner import MODEL_RUNNER, model_runner
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
from quirks_core.facts.unknown import UNKNOWN, Facts, Unknown
from quirks_core.source.vllm_source import INSTALLED, VllmSource

#: Variables with these prefixes are facts of every run; others only if a quirk reads them or the configuration sets them.
_FAMILIES_OF_VARIABLES = ("NCCL_", "NRL_", "VLLM_")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_OVERRIDES = "engine.hf_overrides"
#: Prefix of the facts about the features of the CPU.
_CPU = "platform.cpu."
_GPU = "platform.gpu.capability"
_MEDIA = ("vision_config", "audio_config", "vision_tower_config", "visual")


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


class ModelFacts(Record):
    """The content of a checkpoint's ``config.json``.

    Attributes:
        name: Hub id or folder name.
        path: What the user gave.
        config: The parsed ``config.json``.
    """

    name: str
    path: str
    config: dict[str, Any]

    @classmethod
    def read(cls, model: str, revision: str | None = None) -> ModelFacts:
        """Reads the facts from a folder or a hub id.

        Raises:
            UsageError: No readable ``config.json``.
        """
        file = config_file(model, revision)
        folder = Path(model).expanduser()
        return cls(name=folder.resolve().name if folder.is_dir() else model, path=model, config=read_config(file))

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of the configuration: ``text_config`` of a multimodal model, else the whole."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def model_type(self) -> str | None:
        """``model_type``."""
        value = self.config.get("model_type")
        return value if isinstance(value, str) else None

    @property
    def architectures(self) -> tuple[str, ...]:
        """``architectures``."""
        value = self.config.get("architectures")
        return tuple(str(name) for name in value) if isinstance(value, list) else ()

    @property
    def num_experts(self) -> int | Unknown | None:
        """Number of routed experts of a MoE layer, the most of any layer.

        Returns:
            None for a dense model; `UNKNOWN` if the configuration gives no number, and either no model type or one of a MoE.
        """
        given = [part[key] for part in (self.config, self.text_config) for key in _EXPERTS if part.get(key) is not None]
        if given:  # Ernie's configuration has a list, by layer
            counts = [count for item in given for count in (item if isinstance(item, list) else [item])]
            numbers = [count for count in counts if isinstance(count, int)]
            most = max(numbers, default=0)
            return most if most > 1 else None if len(numbers) == len(counts) else UNKNOWN
        names = " ".join((self.model_type or "", str(self.text_config.get("model_type")), *self.architectures))
        return UNKNOWN if self.model_type is None or "moe" in names.lower() else None

    @property
    def is_moe(self) -> bool:
        """The model is known to have more than one expert; the fact ``model.is_moe`` is unknown where the number is."""
        return isinstance(self.num_experts, int)

    @property
    def head_size(self) -> int | None:
        """Width of an attention head of the language model; None if the configuration has no number of such heads."""
        heads, width, given = (self.text_config.get(key) for key in ("num_attention_heads", "hidden_size", "head_dim"))
        if not isinstance(heads, int) or heads < 1:
            return None
        return given if isinstance(given, int) else width // heads if isinstance(width, int) else None

    @property
    def is_quantized(self) -> bool:
        """The weights are quantised: the configuration, or that of the language model, states how."""
        return any(part.get(key) for part in (self.config, self.text_config) for key in QUANTIZATION_KEYS)

    @property
    def is_multimodal(self) -> bool:
        """The model accepts image or audio input."""
        return any(self.config.get(key) for key in _MEDIA)


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
        packages: Versions by package; a package that is missing is not installed.
        assumed: The packages whose version was assumed (``--assume``) rather than read.
        platform: Platform of the installed engine; None if it is unknown.
        cpu: The CPU's features (`quirks_core.facts.packages.CPU_FEATURES`), on the CPU platform; None elsewhere, or if unknown.
        gpu: Compute capability of the GPUs, times ten, if a quirk reads it; None elsewhere, or if it is unknown.
        environment: The user's environment variables that quirks may match on.
        extra: Facts that plugins added, by ``distribution.name``.
    """

    purpose: Purpose = "rollout"
    recipe: str | None = None
    model: ModelFacts
    settings: dict[str, Any] = Field(default_factory=dict)
    typed: frozenset[str] = frozenset()
    undeclared: frozenset[str] = frozenset()
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
            assume: ``package==version``, ``platform==name`` and ``cpu==kind``, to assume instead of what is here.
            environ: The process environment; `os.environ` if None.
            source: The vLLM of the run.

        Raises:
            UsageError: The model cannot be read, the installed vLLM does not take an engine argument that the user typed, or an
                assumption makes no sense.
        """
        fact_names = frozenset(fact_names)
        packages = {name.removeprefix("packages.") for name in fact_names if name.startswith("packages.")}
        assumed = parse_assumptions(assume, packages)
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
            packages={**found, **installed_versions(), **assumed.versions},
            assumed=frozenset(assumed.versions),
            platform=platform,
            cpu=(cpu_features() if assumed.cpu is None else assumed.cpu) if platform == "cpu" else None,
            gpu=gpu_capability() if platform == "cuda" and _GPU in fact_names else None,
            environment=_variables(config, fact_names, os.environ if environ is None else environ),
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
    """

    name: str
    help: str
    read: Callable[[RunContext], Any] = lambda _: UNKNOWN
    unknown: str = ""


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


def _is_moe(context: RunContext) -> Any:
    return UNKNOWN if context.loaded.num_experts is UNKNOWN else context.loaded.is_moe


_NO_TYPE = "config.json gives no model_type"
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
                model_runner,
                "a platform or release that was not read, or what decides (the model, drafts, another argument) cannot be told",
            ),
            FactSpec("model.name", "hub id or folder name", lambda run: run.model.name),
            FactSpec("model.model_type", "model_type of config.json", lambda run: _known(run.loaded.model_type), _NO_TYPE),
            FactSpec("model.architectures", "architectures of config.json", lambda run: run.loaded.architectures),
            FactSpec("model.is_moe", "the model has more than one expert", _is_moe, _NO_COUNT),
            FactSpec(
                "model.num_experts",
                "routed experts of a MoE layer, the most of any",
                lambda run: run.loaded.num_experts,
                _NO_COUNT,
            ),
            FactSpec(
                "model.head_size",
                "width of an attention head: head_dim, or hidden_size / num_attention_heads; absent without such heads",
                lambda run: run.loaded.head_size,
            ),
            FactSpec(
                "model.is_quantized",
                "the weights are quantised: quantization_config of config.json, and not emptied by engine.hf_overrides",
                lambda run: run.loaded.is_quantized,
            ),
            FactSpec("model.is_multimodal", "the model accepts image or audio input", lambda run: run.loaded.is_multimodal),
            *(
                FactSpec(name, help_, _of_checkpoint(name), _NO_FILE[name.partition(".")[0]])
                for name, (help_, _) in CHECKPOINT_FACTS.items()
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
