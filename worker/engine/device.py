"""Identifies the device of an engine's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_id(device: torch.device) -> str:
    """Returns the identity of the device: a GPU's UUID, else ``cpu``."""
    if device.type != "cuda":
        return "cpu"
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
