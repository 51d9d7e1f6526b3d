"""Which engine of a group gets which prompt."""

from __future__ import annotations

from collections.abc import Mapping


class Router:
    """Counts the requests in flight of every engine, and gives the next prompt to the engine with the fewest.

    Attributes:
        in_flight: Requests of every engine.
    """

    def __init__(self, engines: int) -> None:
        self.in_flight = [0] * engines

    def share(self, rows: Mapping[int, list[int]], engine: int | None = None) -> dict[int, dict[int, list[int]]]:
        """Distributes prompts, and counts them as in flight.

        Args:
            rows: Prompts by number.
            engine: Give all of them to this one.

        Returns:
            By engine, its prompts by number; engines without any are missing.
        """
        shares: dict[int, dict[int, list[int]]] = {}
        for index, row in rows.items():
            chosen = self.in_flight.index(min(self.in_flight)) if engine is None else engine
            self.in_flight[chosen] += 1
            shares.setdefault(chosen, {})[index] = row
        return shares

    def done(self, engine: int, count: int = 1) -> None:
        """Counts requests as ended, whatever their result."""
        self.in_flight[engine] -= count
