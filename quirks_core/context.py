"""The facts of one run: what the model is, what is installed, what the user asked for and which keys the user typed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from quirks_core import sources
from quirks_core.checkpoint import config_file, read_config
from quirks_core.match import UNKNOWN, Facts, Unknown
from quirks_core.packages import distribution_of, installed_platform, installed_version, installed_versions, parse_assumptions
from quirks_core.slots import SLOTS

Purpose = Literal["rollout", "eval", "serve"]

#: Variables of these families are facts; a name that looks like a secret is never read.
_FACT_VARIABLES = ("NCCL_", "NRL_", "VLLM_")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
#: The facts that have names of their own; slots are facts under their names, and `FAMILIES` have open ends.
FACTS = (
    "purpose",
    "recipe",
    "platform",
    "model.name",
    "model.model_type",
    "model.architectures",
    "model.is_moe",
    "model.num_experts",
    "model.is_multimodal",
    "parallel.replica_size",
    "parallel.expert_group_size",
    "parallel.num_ranks",
    "cluster.num_gpus",
    "environment.unread",
)
FAMILIES = ("typed.", "env.", "packages.", "model.config.")
_MAY_BE_UNKNOWN = ("platform", "model.model_type", "model.is_moe", "model.num_experts", "environment.unread", "packages.")
#: The kinds of parallelism inside a replica, then that of replicas; a size that is left open is 1.
_PARALLEL = ("tensor", "pipeline", "data")
_MEDIA = ("vision_config", "audio_config", "vision_tower_config", "visual")


class Record(BaseModel):
    """Base of the records that travel as JSON: frozen, and strict about their keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(Protocol):
    """What a `RunContext` is gathered from; `worker.config.GenerationConfig` is one."""

    @property
    def purpose(self) -> Purpose:
        """What the run is for."""

    @property
    def recipe(self) -> str | None:
        """Name of the training recipe."""

    @property
    def model_path(self) -> str:
        """Folder or hub id."""

    @property
    def model_revision(self) -> str | None:
        """Branch, tag or commit on the hub."""

    def slots(self) -> dict[str, Any]:
        """The value of every slot before quirks."""

    def typed_slots(self) -> frozenset[str]:
        """The slots whose value the user typed."""

    def environment(self) -> Mapping[str, str]:
        """The environment variables that the configuration sets."""


class InstalledFacts(Facts, Protocol):
    """Facts that include what is installed."""

    def source_known(self, package: str) -> bool:
        """Tells whether the package's source on this machine is that of the version the facts speak of."""


class Installation:
    """The facts that hold for every run on this installation; all others are unknown.

    Args:
        versions: Versions by package to take instead of what is installed; their source is not known then.
    """

    def __init__(self, versions: Mapping[str, str] | None = None) -> None:
        self._versions = versions

    def fact(self, name: str) -> Any:
        """Returns the platform or a package's version."""
        package = name.removeprefix("packages.")
        if name == "platform" and self._versions is None:
            found = installed_platform()
        elif package == name:
            found = None
        else:
            found = installed_version(package) if self._versions is None else self._versions.get(package)
        return UNKNOWN if found is None else found

    def source_known(self, package: str) -> bool:
        """Tells whether the package is installed, and what is installed counts."""
        return self._versions is None and installed_version(package) is not None


class ModelFacts(Record):
    """What a checkpoint's ``config.json`` says.

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
    def is_multimodal(self) -> bool:
        """The model sees or hears."""
        return any(self.config.get(key) for key in _MEDIA)


class RunContext(Record):
    """Frozen facts of one run; the only thing that matching sees.

    Attributes:
        purpose: ``rollout`` (a trainer will refit), ``eval`` or ``serve``.
        recipe: Name of the training recipe, if the user gave one.
        model: Facts of the checkpoint.
        settings: The value of every slot before quirks: typed, or the configuration's default.
        typed: The slots whose value the user typed.
        packages: Versions by package; a package that is missing is not installed.
        assumed: The packages whose version was assumed (``--assume``) rather than read.
        platform: Platform of the installed engine; None if it cannot be told.
        environment: The user's environment variables of the families that quirks may ask for.
        extra: Facts that plugins added, by ``distribution.name``.
    """

    purpose: Purpose = "rollout"
    recipe: str | None = None
    model: ModelFacts
    settings: dict[str, Any] = Field(default_factory=dict)
    typed: frozenset[str] = frozenset()
    packages: dict[str, str] = Field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    platform: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)

    @field_serializer("typed", "assumed", when_used="json")
    def _in_order(self, names: frozenset[str]) -> list[str]:
        """A set has another order in every process; the JSON, and the digest made of it, must not."""
        return sorted(names)

    @classmethod
    def gather(
        cls,
        config: Settings,
        *,
        assume: Iterable[str] = (),
        packages: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> RunContext:
        """Gathers the facts of a run: reads files and metadata, imports nothing, changes nothing.

        Args:
            config: The user's configuration.
            assume: ``package==version`` and ``platform==name`` to take instead of what is installed.
            packages: Packages to know the version of, besides those that every run knows (`Registry.packages`).
            environ: The process environment; `os.environ` if None.

        Raises:
            UsageError: The model cannot be read, or an assumption makes no sense.
        """
        versions, assumed_platform = parse_assumptions(assume, packages)
        # What the configuration sets is set for the engine's processes: it overrides the shell.
        variables = {**(os.environ if environ is None else environ), **config.environment()}
        typed = config.typed_slots() | {f"env.{name}" for name in variables if f"env.{name}" in SLOTS}
        slots = {
            **config.slots(),
            **{f"env.{name}": value for name, value in variables.items() if f"env.{name}" in SLOTS},
        }
        return cls(
            purpose=config.purpose,
            recipe=config.recipe,
            model=ModelFacts.read(config.model_path, config.model_revision),
            settings=slots,
            typed=typed,
            packages={**installed_versions(), **versions},
            assumed=frozenset(versions),
            platform=assumed_platform or installed_platform(),
            environment={name: value for name, value in variables.items() if is_fact_variable(name)},
        )

    def fact(self, name: str) -> Any:
        """Returns a fact by its dotted name.

        Returns:
            None for a fact that is known to be absent (a slot left open, a variable not set), and `UNKNOWN` for one that
            nobody could tell.
        """
        if name in self._facts:
            return self._facts[name]
        if name in self.extra:  # not in the cache: it is copied along when plugins add their facts
            return self.extra[name]
        family, _, rest = name.partition(".")
        match family:
            case "typed":
                return rest in self.typed
            case "env":
                # Never read is not the same as not set.
                return self.environment.get(rest) if is_fact_variable(rest) else UNKNOWN
            case "packages":
                return self.packages.get(distribution_of(rest), UNKNOWN)
            case "model" if rest.startswith("config."):
                return _walk(self.model.config, rest.split(".")[1:])
        return None if name in SLOTS else UNKNOWN

    def with_packages(self, names: Iterable[str]) -> RunContext:
        """Returns these facts with the installed versions of further packages, as far as those are there."""
        more = {name: found for name in names if name not in self.packages and (found := installed_version(name)) is not None}
        return self.model_copy(update={"packages": {**self.packages, **more}}) if more else self

    @cached_property
    def _facts(self) -> dict[str, Any]:
        # Keep in step with `always_known` and `FACTS`.
        tensor, pipeline, data = (self.settings.get(f"engine.{kind}_parallel_size") or 1 for kind in _PARALLEL)
        gpus = self.settings.get("cluster.gpus_per_node")
        experts = self.model.num_experts
        return {
            **self.settings,
            "purpose": self.purpose,
            "recipe": self.recipe,
            "platform": UNKNOWN if self.platform is None else self.platform,
            "model.name": self.model.name,
            "model.model_type": UNKNOWN if self.model.model_type is None else self.model.model_type,
            "model.architectures": self.model.architectures,
            "model.is_moe": UNKNOWN if experts is UNKNOWN else self.model.is_moe,
            "model.num_experts": experts,
            "model.is_multimodal": self.model.is_multimodal,
            "parallel.replica_size": tensor * pipeline,
            "parallel.expert_group_size": data * tensor,
            "parallel.num_ranks": data * tensor * pipeline,
            "cluster.num_gpus": None if gpus is None else gpus * (self.settings.get("cluster.num_nodes") or 1),
            "environment.unread": UNKNOWN if self.unread_environment is None else self.unread_environment,
        }

    @cached_property
    def unread_environment(self) -> tuple[str, ...] | None:
        """The ``VLLM_*`` variables that the user set and the installed engine does not read; None if it cannot be told."""
        if (told := self.extra.get("environment.unread")) is not None:  # by an example; no distribution has that name
            return tuple(told)
        given = [name for name in self.environment if name.startswith("VLLM_")]
        if not given:
            return ()
        return sources.unread_by_engine(given) if self.source_known("vllm") else None

    def source_known(self, package: str) -> bool:
        """Tells whether the package's source on this machine is that of the version the context speaks of."""
        return package not in self.assumed and package in self.packages


def is_known_fact(name: str) -> bool:
    """Tells whether a run has a fact of that name without a plugin's help."""
    family = next((family for family in FAMILIES if name.startswith(family)), "")
    if family == "typed.":
        return name.removeprefix(family) in SLOTS
    return bool(family) or name in FACTS or name in SLOTS


def always_known(name: str) -> bool:
    """Tells whether every run knows the fact (also as absent), so that a condition on it is never unknown."""
    if name.startswith("env."):
        return name in SLOTS or is_fact_variable(name.removeprefix("env."))
    return is_known_fact(name) and not name.startswith(_MAY_BE_UNKNOWN)


def is_fact_variable(name: str) -> bool:
    """Tells whether an environment variable is one that quirks may ask for."""
    return name.startswith(_FACT_VARIABLES) and not is_secret(name)


def is_secret(variable: str) -> bool:
    """Tells whether a variable's name looks like that of a secret."""
    return any(mark in variable for mark in _SECRETS)


def _walk(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
