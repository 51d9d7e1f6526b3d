"""Where the tensors of a checkpoint are on this machine."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["NoFilesError", "files_of"]

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class NoFilesError(Exception):
    """A checkpoint has no safetensors files on this machine, or not all of them."""


def files_of(model: str, revision: str | None = None) -> dict[str, Path]:
    """Returns the file of each tensor of a checkpoint; nothing is downloaded.

    Args:
        model: Its folder, or its id on the hub.
        revision: The revision on the hub.

    Raises:
        NoFilesError: A file is not here.
    """
    from safetensors import safe_open

    if (index := _file(model, _INDEX, revision)) is not None:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        here = {file: _file(model, file, revision) for file in set(names.values())}
        found = {name: path for name, file in names.items() if (path := here[file]) is not None}
        if len(found) == len(names):
            return found
    elif (single := _file(model, _ONE_FILE, revision)) is not None:
        with safe_open(single, "pt") as opened:
            return dict.fromkeys(opened.keys(), single)
    raise NoFilesError(f"{model} has no safetensors files on this machine")


def _file(model: str, name: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        file = Path(model, name)
        return file if file.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, name, revision=revision)
    return Path(found) if isinstance(found, str) else None
