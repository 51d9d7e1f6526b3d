"""The safetensors files of a checkpoint: what they hold, and their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from quirks_core.base.errors import UsageError
from worker.refit.weights.manifest import Manifest, TensorSpec


def held(folder: Path) -> Manifest:
    """Describes the tensors of a checkpoint's safetensors files, as `Manifest.check` takes them; skips what it cannot read."""
    specs: list[TensorSpec] = []
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, ValueError, SafetensorError):
            file = _opened(path)
            specs += Manifest.of((name, file.get_tensor(name)) for name in list(file.keys())).tensors
    return Manifest(tuple(specs), announced=False)


def read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a checkpoint's safetensors files by name, sorted, each mapped from its file.

    Raises:
        UsageError: It has no such files, or one is not complete.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder} holds no safetensors files; name the folder of a checkpoint")
    try:
        places = {name: file for file in map(_opened, files) for name in list(file.keys())}
        for name in sorted(places):
            yield name, places[name].get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{folder} holds a file that is no complete safetensors file: {error}") from error


def _opened(path: Path) -> Any:
    """Opens a file; its tensors are mapped, and none is read before it is used."""
    return safe_open(path, framework="pt", device="cpu")
