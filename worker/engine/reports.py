"""What an engine's workers report of themselves; these functions run in them (`worker.engine.engine.Engine.call`)."""

from __future__ import annotations

from typing import Any

from worker.engine.device import device_id


def device(worker: Any) -> str:
    """Returns the identity of this worker's device: a GPU's UUID, else ``cpu``."""
    return device_id(worker.device)
