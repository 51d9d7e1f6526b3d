"""The command line: ``quirks list | show | plan | explain | doctor | generate | demo``."""

from __future__ import annotations

from quirks_core.cli.main import main

__all__ = ["main"]
