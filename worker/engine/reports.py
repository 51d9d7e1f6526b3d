"""What an engine's workers say of themselves; these functions run in them (`worker.engine.engine.Engine.call`)."""

from __future__ import annotations

from typing import Any

from quirks_core.apply import process
from quirks_core.apply.read_back import read_configuration
from worker.engine.device import device_id


def configuration(worker: Any, slots: list[str]) -> None:
    """Acknowledges once more, with the values of these slots in this worker's own configuration."""
    process.report_configuration(read_configuration(worker.vllm_config, slots))


def device(worker: Any) -> str:
    """Returns what tells this worker's device from all others: a GPU's UUID, else ``cpu``."""
    return device_id(worker.device)
