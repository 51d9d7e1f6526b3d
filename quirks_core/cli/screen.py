"""The console of all commands."""

from __future__ import annotations

from rich.console import Console


class Screen(Console):
    """A console that leaves a closed pipe to `main`; rich would end the program with 1, which means findings."""

    def on_broken_pipe(self) -> None:
        """Lets the error through that rich is handling."""
        raise
