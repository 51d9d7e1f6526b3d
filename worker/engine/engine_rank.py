"""A worker's place in a group: which of the data-parallel ranks it is, and the address of their group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How data-parallel ranks belong together (slot ``parallel.dp_strategy``).
Strategy = Literal["actors", "engine", "independent"]


@dataclass(frozen=True, slots=True)
class EngineRank:
    """One engine among those of a group.

    Attributes:
        strategy: ``actors``: the engine is one rank of vLLM's data-parallel group. ``engine``: it owns all ranks.
            ``independent``: it shares nothing with the others.
        rank: Number of the engine, from 0.
        engines: Engines of the group.
        address: Address of the data-parallel group: the node of rank 0.
        port: The port there; None without such a group.
    """

    strategy: Strategy
    rank: int = 0
    engines: int = 1
    address: str = "127.0.0.1"
    port: int | None = None
