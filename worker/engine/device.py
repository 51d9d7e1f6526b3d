"""Identifies devices; a worker of vLLM names its own when it is called (`worker.engine.engine.Engine.call`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def device_id(device: torch.device) -> str:
    """Returns the identity of the device: a GPU's UUID, else ``cpu``."""
    if device.type != "cuda":
        return "cpu"
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def device_of(worker: Any) -> str:
    """Returns the identity of a worker's device."""
    return device_id(worker.device)
