"""The base of every part of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
