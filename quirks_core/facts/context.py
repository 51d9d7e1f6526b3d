"""The facts of one run: the model, the installed packages, the settings, and which of them the user typed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, PrivateAttr, field_serializer

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.configuration import variables
from quirks_core.configuration.config import GenerationConfig, Purpose
from quirks_core.configuration.slots import SLOTS, Place, engine_problem, is_slot, placed, slot_named
from quirks_core.facts.assumptions import parse_assumptions
from quirks_core.facts.checkpoint import Checkpoint
from quirks_core.facts.fact_table import CPU, GPU, feature, find_fact
from quirks_core.facts.model import ModelFacts, overridden
from quirks_core.facts.packages import cpu_features, gpu_capability, installed_platform, installed_version, installed_versions
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.source.vllm_source import INSTALLED, VllmSource

#: Variables with these prefixes are facts of every run; others only if a quirk reads them or the configuration sets them.
_FAMILIES_OF_VARIABLES = ("NCCL_", "NRL_", "VLLM_")
_OVERRIDES = "engine.hf_overrides"


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
        found: Any = None
        if name.startswith("packages."):
            package = name.removeprefix("packages.")
            found = installed_version(package) if self._versions is None else self._versions.get(package)
        elif self._versions is None and name.startswith(CPU):
            found = feature(cpu_features(), name)
        elif self._versions is None and name == "platform":
            found = installed_platform()
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
            sources=dict(config.sources),
            packages={**found, **installed_versions(), **assumed.versions},
            assumed=frozenset({*assumed.versions, *assumed.facts, *([GPU] if assumed.gpu else [])}),
            platform=platform,
            cpu=(cpu_features() if assumed.cpu is None else assumed.cpu) if platform == "cpu" else None,
            gpu=(assumed.gpu or gpu_capability()) if platform == "cuda" and GPU in fact_names else None,
            environment=planned_variables(  # the configuration overrides the shell, as it does in the engine
                [*fact_names, *(f"env.{name}" for name in config.env)],
                {**(os.environ if environ is None else environ), **config.env},
            ),
            extra=dict(assumed.facts),
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
        if name in SLOTS:
            return UNKNOWN if name in self.undeclared else self.settings.get(name)
        spec = find_fact(name)
        return UNKNOWN if spec is None else spec.read(self, name)

    def of_checkpoint(self, name: str) -> Any:
        """Returns a fact that is read from further files of the checkpoint; `UNKNOWN` in a run that is made up."""
        return UNKNOWN if self._checkpoint is None else self._checkpoint.fact(name)

    @property
    def loaded(self) -> ModelFacts:
        """The model as the engine loads it: with ``engine.hf_overrides`` as the user typed them."""
        changes = self.settings.get(_OVERRIDES)
        if not changes or not isinstance(changes, dict):
            return self.model
        return ModelFacts(name=self.model.name, path=self.model.path, config=overridden(self.model.config, changes))

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


def planned_variables(fact_names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that plans depend on, because quirks read them or of their prefix."""
    slots = (slot_named(name.removeprefix("typed.")) for name in fact_names)
    wanted = {slot.key for slot in slots if slot.place is Place.VARIABLE}
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in wanted or name.startswith(_FAMILIES_OF_VARIABLES)) and variables.reason_to_refuse(name) is None
    }


#: Facts that include what is installed.
InstalledFacts = Installation | RunContext
