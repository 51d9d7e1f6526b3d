"""The console, under the name that commands import it by."""

from __future__ import annotations

from quirks_core.reporting.terminal import Screen, line, lines

__all__ = ["Screen", "line", "lines"]
