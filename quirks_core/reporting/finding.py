"""A finding, and how JSON has it; `quirks_core.reporting.terminal` has the terminal's form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:  # no model of pydantic, which would double the time of commands that need none
    """One thing that was checked.

    Attributes:
        level: How grave it is: ``ok``, ``note``, ``error``, ``broken``.
        subject: What it is about.
        message: What is so, and what to do.
        lines: Lines that show it.
        change: What to change, as it is typed or written.
    """

    level: str
    subject: str
    message: str
    lines: tuple[str, ...] = ()
    change: str = ""

    @property
    def text(self) -> str:
        """The message, the lines that show it, and the change."""
        return "\n".join([self.message, *self.lines, *([f"change: {self.change}"] if self.change else [])])

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that hold something."""
        return {name: value for name, value in asdict(self).items() if value}
