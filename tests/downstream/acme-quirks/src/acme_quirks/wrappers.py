"""What acme-engine's functions become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def greedy_at_zero(scaled: Callable[..., list[float]]) -> Callable[..., list[float]]:
    """Takes a temperature of zero as greedy sampling."""

    def wrapped(logits: list[float], temperature: float) -> list[float]:
        return logits if temperature == 0 else scaled(logits, temperature)

    return wrapped


def first_of_equals(_: Any, logits: list[float]) -> int:
    """Picks the first of equal logits."""
    return logits.index(max(logits))


def seed(_: Any, number: int) -> int:
    """Seeds the sampler, which has no random numbers."""
    return number
