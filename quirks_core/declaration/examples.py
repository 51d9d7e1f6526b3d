"""Examples: runs that a quirk's author declares, with the verdict and the outcome that each must get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack, get_args

from quirks_core.base.errors import DeclarationError, UsageError
from quirks_core.configuration.config import Purpose
from quirks_core.configuration.slots import checked_value
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import RunContext
from quirks_core.facts.model import ModelFacts
from quirks_core.facts.packages import CPU_KINDS, distribution_of


@dataclass(frozen=True, kw_only=True)
class Example:
    """The facts of a run that matter to one quirk, and the verdict that the quirk must get; see `yes`.

    Attributes:
        answer: The verdict.
        config: The checkpoint's ``config.json``.
        settings: Values by slot, as if the user had typed them.
        defaults: Values by slot that the configuration has without the user having typed them. Every other slot is not set.
        packages: Versions by package; a package that is missing is not installed.
        platform: Platform of the engine; None if it is unknown.
        cpu: Kind of CPU, one of `quirks_core.facts.packages.CPU_KINDS`; None if it is unknown.
        environment: The user's environment variables.
        purpose: Purpose of the run.
        recipe: Name of the training recipe.
        name: Name of the model.
        extra: Facts of plugins, by ``distribution.name``; and facts that a real run reads from further files: those of the
            tokenizer, ``model.stop_token_ids``, and ``environment.unread``, which comes from the engine's source.
        gives: The slots that the quirk changes, with the values that they end up with; None if the example does not state it.
        refuses: Texts that must occur in the slots, reasons or remedies with which the quirk refuses the run.
        advises: Texts that must occur in the quirk's advice.
        patches: The attributes that the quirk patches, without their modules.
    """

    answer: Answer
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    platform: str | None = None
    cpu: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    purpose: Purpose = "rollout"
    recipe: str | None = None
    name: str = "model"
    extra: Mapping[str, Any] = field(default_factory=dict)
    gives: Mapping[str, Any] | None = None
    refuses: tuple[str, ...] = ()
    advises: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.purpose not in get_args(Purpose):
            raise DeclarationError(f"Example: purpose {self.purpose!r} is none of {', '.join(get_args(Purpose))}")
        if self.cpu is not None and self.cpu not in CPU_KINDS:
            raise DeclarationError(f"Example: cpu {self.cpu!r} is none of {', '.join(CPU_KINDS)}")
        if self.states_outcome and self.answer is not Answer.YES:
            raise DeclarationError(f"Example: a run that gets {self.answer} has no outcome: leave out {', '.join(OUTCOME)}")
        slots = {**self.defaults, **self.settings, **(self.gives or {})}
        try:
            for slot, value in [*slots.items(), *((f"env.{name}", text) for name, text in self.environment.items())]:
                checked_value(slot, value)
        except UsageError as error:
            raise DeclarationError(f"Example: {error}") from None

    @property
    def states_outcome(self) -> bool:
        """The example states the quirk's outcome; what it leaves out must not happen then."""
        return self.gives is not None or bool(self.refuses or self.advises or self.patches)

    def context(self) -> RunContext:
        """Returns the facts of the run. Package versions count as assumed, so that nothing installed is looked at."""
        versions = {distribution_of(name): version for name, version in self.packages.items()}
        return RunContext(
            purpose=self.purpose,
            recipe=self.recipe,
            model=ModelFacts(name=self.name, path=self.name, config=dict(self.config)),
            settings={**self.defaults, **self.settings},
            typed=frozenset(self.settings),
            packages=versions,
            assumed=frozenset(versions),
            platform=self.platform,
            cpu=None if self.cpu is None else CPU_KINDS[self.cpu],
            environment=dict(self.environment),
            extra=dict(self.extra),
        )


class Run(TypedDict, total=False):
    """Keywords of `yes`, `no` and `unknown`: those of `Example`, with two short names."""

    vllm: str  #: version of vLLM, as in ``packages``
    env: Mapping[str, str]  #: the user's environment variables
    defaults: Mapping[str, Any]  #: values by slot that the configuration has without the user having typed them
    packages: Mapping[str, str]
    platform: str
    cpu: str  #: kind of CPU: ``avx2``, ``avx512``, ``avx512_bf16`` or ``amx``
    purpose: Purpose
    recipe: str
    name: str
    extra: Mapping[str, Any]
    gives: Mapping[str, Any]  #: the slots that the quirk changes, with the values that they end up with
    refuses: str | Sequence[str]  #: texts of the refusal: its slot, or words of its reason or remedy
    advises: str | Sequence[str]  #: texts of the advice
    patches: str | Sequence[str]  #: the attributes that the quirk patches, without their modules


#: The keywords of `yes` that state the quirk's outcome.
OUTCOME = ("gives", "refuses", "advises", "patches")
#: A checkpoint's ``model_type``, or its whole ``config.json``.
Model = str | Mapping[str, Any] | None
Settings = Mapping[str, Any] | None


def yes(model: Model = None, settings: Settings = None, **run: Unpack[Run]) -> Example:
    """A run that the quirk concerns.

    For example::

        yes("gemma3", vllm="0.9.1")
        yes({"model_type": "qwen3_moe", "num_experts": 8}, {"engine.data_parallel_size": 2}, platform="cpu")
        yes("gemma3", gives={"engine.load_format": "auto"}, vllm="0.9.1")
        yes("gemma3", {"engine.load_format": "dummy"}, refuses="engine.load_format", vllm="0.9.1")

    Args:
        model: The checkpoint's ``model_type``, or its ``config.json``; an empty one if None.
        settings: Values by slot, as if the user had typed them.
        **run: Other facts of the run, and its outcome.
    """
    return _example(Answer.YES, model, settings, run)


def no(model: Model = None, settings: Settings = None, **run: Unpack[Run]) -> Example:
    """A run that the quirk does not concern; arguments as for `yes`, without an outcome."""
    return _example(Answer.NO, model, settings, run)


def unknown(model: Model = None, settings: Settings = None, **run: Unpack[Run]) -> Example:
    """A run in which a fact is missing that the quirk needs; arguments as for `yes`, without an outcome."""
    return _example(Answer.UNKNOWN, model, settings, run)


def _example(answer: Answer, model: Model, settings: Settings, run: Run) -> Example:
    facts: dict[str, Any] = {**run}
    if "vllm" in facts:
        facts["packages"] = {"vllm": facts.pop("vllm"), **facts.get("packages", {})}
    if "env" in facts:
        facts["environment"] = facts.pop("env")
    for name in ("refuses", "advises", "patches"):
        given = facts.get(name, ())
        facts[name] = (given,) if isinstance(given, str) else tuple(given)
    config = {"model_type": model} if isinstance(model, str) else model or {}
    return Example(answer=answer, config=config, settings=settings or {}, **facts)
