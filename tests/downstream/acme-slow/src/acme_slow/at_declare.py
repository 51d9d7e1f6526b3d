"""Declares when the server answers."""

import threading

from quirks_core import Quirk, hookimpl


@hookimpl
def quirks_declare() -> list[Quirk]:
    """Never returns."""
    threading.Event().wait()
    return []
