"""A finding: the one record for whatever is said to a person. `quirks_core.reporting.terminal` prints it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:  # no model of pydantic, which would double the time of commands that need none
    """One thing that was found, or is to be done.

    Attributes:
        level: How grave it is, or what it is: ``ok``, ``note``, ``error``, ``in force``, ``undecided``.
        subject: What it is about; empty if the message says so.
        message: What is so, and what to do.
        lines: Lines that show it.
        section: The part of a report that it belongs to; empty if there are no parts.
        paste: What to change, as it is typed or written.
        change: The same, to be applied by a program.
    """

    level: str
    subject: str
    message: str
    lines: tuple[str, ...] = ()
    section: str = ""
    paste: str = ""
    change: Any = None

    def __str__(self) -> str:
        """Returns the finding as one line of a log."""
        text = ": ".join(filter(None, (self.level, self.subject, self.message)))
        return f"{text} ({'; '.join(self.lines)})" if self.lines else text

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that hold something."""
        return {name: value for name, value in asdict(self).items() if value}
