"""Returns names where quirks are wanted."""

from quirks_core import hookimpl


@hookimpl
def quirks_declare() -> list[str]:
    """Returns the wrong type."""
    return ["acme-eager"]
