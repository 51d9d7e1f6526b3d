"""The JSON that programs may rely on: `quirks_core.schemas` has its form, and docs/stability.md what may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quirks_core.base.json_values import canonical

#: The version of every schema. It grows if a key goes or means something else; new keys leave it as it is.
SCHEMA = 1


def print_document(values: Mapping[str, Any]) -> None:
    """Prints values as JSON, with the version of their schema."""
    print(canonical({"schema": SCHEMA, **values}, indent=2))
