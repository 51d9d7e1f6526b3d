"""What an engine's workers say of themselves; these functions run in them (`worker.engine.engine.Engine.call`)."""

from __future__ import annotations

from typing import Any

from worker.engine.device import device_id


def device(worker: Any) -> str:
    """Returns what tells this worker's device from all others: a GPU's UUID, else ``cpu``."""
    return device_id(worker.device)
