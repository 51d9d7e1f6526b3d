"""The base class of records."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base class of records that are sent as JSON: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
