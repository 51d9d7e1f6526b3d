"""The five things a quirk can ask for, as data: `Default`, `Require`, `Refuse`, `Advise` and `Patch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quirks_core.errors import DeclarationError, UsageError
from quirks_core.match import Match
from quirks_core.slots import checked_value, find_slot

if TYPE_CHECKING:
    from quirks_core.context import RunContext

#: Fingerprint of a patch target that does not exist: the patch adds it.
ABSENT = "absent"


def _check_slot(slot: str, value: Any) -> None:
    try:
        find_slot(slot) if callable(value) else checked_value(slot, value)
    except UsageError as error:
        raise DeclarationError(str(error)) from None


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
        _check_slot(self.slot, self.value)


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
        _check_slot(self.slot, self.value)


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


@dataclass(frozen=True, slots=True)
class Advise:
    """A warning.

    Attributes:
        message: The text, or a pure function of the `RunContext` that returns it.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    message: str | Callable[[RunContext], str]
    when: Match | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Replaces one attribute of an installed package, in every engine process, with a guard against drift.

    Attributes:
        target: ``package.module:Class.attribute``.
        replacement: ``package.module:function``; called with the original (None where the target's owner does not define
            it) it returns the new attribute.
        fingerprints: SHA-256 of every source text of the target that the patch was written against (see
            `quirks_core.sources.fingerprint`), or `ABSENT`. Anything else is refused.
        reason: Why; the quirk's title if empty.
        when: A further condition on the facts; the adjustment counts only where it holds.
    """

    target: str
    replacement: str
    fingerprints: tuple[str, ...]
    reason: str = ""
    when: Match | None = None

    def __post_init__(self) -> None:
        for text in (self.target, self.replacement):
            module, colon, attribute = text.partition(":")
            if not (module and colon and attribute):
                raise DeclarationError(f"Patch: {text!r} is not of the form 'package.module:attribute'")
        if not self.fingerprints:
            raise DeclarationError(f"Patch of {self.target}: name the fingerprints it was written against")


Adjustment = Default | Require | Refuse | Advise | Patch
