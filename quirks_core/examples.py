"""Examples: runs that a quirk's author writes down with the verdict that each must get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from quirks_core.context import ModelFacts, Purpose, RunContext
from quirks_core.errors import DeclarationError, UsageError
from quirks_core.packages import distribution_of
from quirks_core.slots import checked_value
from quirks_core.trace import Answer


@dataclass(frozen=True, kw_only=True)
class Example:
    """A run, as far as it matters to one quirk, and the verdict that the quirk must get there.

    Attributes:
        answer: The verdict.
        config: The checkpoint's ``config.json``.
        settings: Values by slot, counted as typed by the user; every other slot is left open.
        packages: Versions by package; a package that is missing is not installed.
        platform: Platform of the engine; None if it cannot be told.
        environment: The user's environment variables.
        purpose: What the run is for.
        recipe: Name of the training recipe.
        name: Name of the model.
        extra: Facts of plugins, by ``distribution.name``; and ``environment.unread``, which is else read from installed source.
    """

    answer: Answer
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    platform: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    purpose: Purpose = "rollout"
    recipe: str | None = None
    name: str = "model"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.answer, Answer):
            raise DeclarationError(f"Example: {self.answer!r} is no Answer")
        if self.purpose not in get_args(Purpose):
            raise DeclarationError(f"Example: purpose {self.purpose!r} is none of {', '.join(get_args(Purpose))}")
        try:
            for slot, value in self.settings.items():
                checked_value(slot, value)
        except UsageError as error:
            raise DeclarationError(f"Example: {error}") from None

    def context(self) -> RunContext:
        """Returns the facts of the run. Package versions count as assumed, so that nothing installed is looked at."""
        versions = {distribution_of(name): version for name, version in self.packages.items()}
        return RunContext(
            purpose=self.purpose,
            recipe=self.recipe,
            model=ModelFacts(name=self.name, path=self.name, config=dict(self.config)),
            settings=dict(self.settings),
            typed=frozenset(self.settings),
            packages=versions,
            assumed=frozenset(versions),
            platform=self.platform,
            environment=dict(self.environment),
            extra=dict(self.extra),
        )
