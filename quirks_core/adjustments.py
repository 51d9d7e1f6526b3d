"""The five things a quirk can ask for, as data: `Default`, `Require`, `Refuse`, `Advise` and `Patch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quirks_core.errors import DeclarationError, UsageError, problem_of_text, shown
from quirks_core.fingerprints import ABSENT
from quirks_core.match import Match
from quirks_core.slots import SLOTS, checked_value, find_slot

if TYPE_CHECKING:
    from quirks_core.context import RunContext


def _check_slot(adjustment: Default | Require) -> None:
    try:
        find_slot(adjustment.slot) if callable(adjustment.value) else checked_value(adjustment.slot, adjustment.value)
    except UsageError as error:
        raise DeclarationError(str(error)) from None
    if not callable(adjustment.value):
        object.__setattr__(adjustment, "value", SLOTS[adjustment.slot].plain(adjustment.value))
    _check_texts(adjustment)


def _check_texts(adjustment: Adjustment) -> None:
    for name in ("reason", "remedy", "message"):
        value = getattr(adjustment, name, "")
        if not (name == "message" and callable(value)) and (problem := problem_of_text(name, value)):
            raise DeclarationError(f"{type(adjustment).__name__}: {problem}")
    if adjustment.when is not None and not isinstance(adjustment.when, Match):
        raise DeclarationError(
            f"{type(adjustment).__name__}: when must be made by quirks_core.match, not {shown(adjustment.when)}"
        )


@dataclass(frozen=True, slots=True)
class Default:
    """Fills a slot that the user left open; an explicit value wins, and the plan says so.

    Attributes:
        slot: Name of the slot.
        value: The value, or a pure function of the `RunContext` that returns it.
        reason: Why; the quirk's title if empty.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    slot: str
    value: Any
    reason: str = ""
    when: Match | None = None

    def __post_init__(self) -> None:
        _check_slot(self)


@dataclass(frozen=True, slots=True)
class Require:
    """A value that correctness needs: a contrary explicit value stops the run and names the off switch.

    Attributes:
        slot: Name of the slot.
        value: The value, or a pure function of the `RunContext` that returns it.
        reason: Why; the quirk's title if empty.
        remedy: What a user with a contrary value should do; derived from the slot if empty.
        instead_of: The only values that are contrary; empty if every other value is.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    slot: str
    value: Any
    reason: str = ""
    remedy: str = ""
    instead_of: tuple[Any, ...] = ()
    when: Match | None = None

    def __post_init__(self) -> None:
        if isinstance(self.instead_of, str) or not isinstance(self.instead_of, list | tuple):
            raise DeclarationError(f"Require of {self.slot}: instead_of must be a list of values, not {shown(self.instead_of)}")
        object.__setattr__(self, "instead_of", tuple(self.instead_of))
        _check_slot(self)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The combination cannot work: the run stops before the engine starts.

    Attributes:
        reason: Why it cannot work.
        remedy: What to do instead.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    reason: str
    remedy: str
    when: Match | None = None

    def __post_init__(self) -> None:
        _check_texts(self)


@dataclass(frozen=True, slots=True)
class Advise:
    """A warning.

    Attributes:
        message: The text, or a pure function of the `RunContext` that returns it.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    message: str | Callable[[RunContext], str]
    when: Match | None = None

    def __post_init__(self) -> None:
        _check_texts(self)


@dataclass(frozen=True, slots=True)
class Patch:
    """Wraps or replaces one attribute of an installed package, in every engine process, with a guard against drift.

    Attributes:
        target: ``package.module:Class.attribute`` or ``package.module:function``; a constant or a field will do too.
        wrapper: ``package.module:function``; called with the original function it returns the new one. Several wrappers of
            one target are put around each other, in order of their quirks' ids.
        replacement: ``package.module:object``; put in place of the target, or added where it does not exist. A target with
            a replacement has one owner, and so has everything in it.
        expects: Fingerprints of every source of the target that the patch was written against (``quirks fingerprint``
            prints them), or `quirks_core.fingerprints.ABSENT`. Anything else is refused.
        reason: Why; the quirk's title if empty.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    target: str
    wrapper: str = ""
    replacement: str = ""
    expects: tuple[str, ...] = ()
    reason: str = ""
    when: Match | None = None

    def __post_init__(self) -> None:
        if isinstance(self.expects, str):
            object.__setattr__(self, "expects", (self.expects,))
        if bool(self.wrapper) is bool(self.replacement):
            raise DeclarationError(f"Patch of {self.target}: give either a wrapper or a replacement")
        for name, text in (("target", self.target), ("wrapper or replacement", self.source)):
            if problem := problem_of_text(name, text):
                raise DeclarationError(f"Patch: {problem}")
            module, colon, attribute = text.partition(":")
            if not (module and colon and attribute):
                raise DeclarationError(f"Patch: {text!r} is not of the form 'package.module:attribute'")
        if not self.expects:
            raise DeclarationError(
                f"Patch of {self.target}: name the fingerprints it was written against (quirks fingerprint {self.target})"
            )
        _check_texts(self)
        if wrong := [item for item in self.expects if type(item) is not str]:
            raise DeclarationError(f"Patch of {self.target}: {shown(wrong[0])} in expects is no fingerprint")
        if self.wrapper and ABSENT in self.expects:
            raise DeclarationError(f"Patch of {self.target}: what is absent cannot be wrapped; give a replacement")

    @property
    def source(self) -> str:
        """Where the new code comes from: the wrapper or the replacement."""
        return self.wrapper or self.replacement


Adjustment = Default | Require | Refuse | Advise | Patch
