"""Where the engine's processes listen for a trainer."""

from __future__ import annotations

from pathlib import Path


def socket_path(folder: Path, rank: int) -> Path:
    """Returns the socket of a rank in an engine's private folder."""
    return folder / f"rank-{rank}.sock"
