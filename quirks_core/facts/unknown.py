"""Facts that may be unknown."""

from __future__ import annotations

from typing import Any, Protocol


class Unknown:
    """The type of `UNKNOWN`: a fact that could not be determined. None is a known value ("left open")."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class Facts(Protocol):
    """What a matcher sees of a `RunContext`."""

    def fact(self, name: str) -> Any:
        """Returns the fact, or `UNKNOWN`."""
