"""Reads a file that is not there."""

from quirks_core import Quirk, hookimpl


@hookimpl
def quirks_declare() -> list[Quirk]:
    """Raises."""
    raise FileNotFoundError("quirks.yaml")
