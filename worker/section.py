"""The base of every part of the configuration."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def lifted(values: Any, place: str, ours: Container[str]) -> Any:
    """Moves keys of ours that were typed in a mapping inside of a section up to the section.

    Args:
        values: What was typed for the section.
        place: The key of the mapping.
        ours: The keys to move.

    Raises:
        ValueError: One of them was typed in both places with different values.
    """
    inner = values.get(place) if isinstance(values, dict) else None
    if not isinstance(inner, dict):
        return values
    moved = {key: value for key, value in inner.items() if key in ours}
    if not moved:
        return values
    if twice := sorted(key for key in moved if key in values and values[key] != moved[key]):
        raise ValueError(f"{', '.join(twice)} set twice with different values, here and under {place}")
    rest = {key: value for key, value in inner.items() if key not in moved}
    outer = {key: value for key, value in values.items() if key != place}
    return {**outer, **moved, **({place: rest} if rest else {})}
