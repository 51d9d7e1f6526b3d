"""The command line, ``quirks``; `quirks_core.cli.command` finds the commands."""

from __future__ import annotations

from quirks_core.cli.main import main

__all__ = ["main"]
