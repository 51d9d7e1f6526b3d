"""The function that quirks about dummy weights put into vLLM: what no refit sends comes from the checkpoint.

A dummy load fills every parameter and every persistent buffer with noise, and a refit that walks ``named_parameters()`` never
replaces the buffers. The wrapper gives them the values that they had before, and loads those that the checkpoint has by the
model's own ``load_weights``.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import wraps
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LOG = logging.getLogger("model_quirks")
#: Names of what is a parameter by convention, or a part of a quantised one.
_PARAMETER = re.compile(r"(^|\.)(weight|bias|\w*(qweight|scale|zero|packed|shape|blocks|g_idx)\w*|weight_\w+)$")
#: DeepSeek-V4's checkpoints have the bias of a router under the name of a parameter.
_CONSTANT = re.compile(r"(^|\.)(gate|router)\.bias$")
#: A tensor with more elements is no constant: stacked experts have no ``weight`` in their names either.
_MOST = 2**24


class NoFilesError(Exception):
    """A checkpoint has no safetensors files on this machine, or not all of them."""


def wrap_dummy_load(original: Callable[..., None]) -> Callable[..., None]:
    """Make a dummy load keep buffers, and take from the checkpoint what is no parameter of a trainer's model.

    Several quirks have this patch; the checkpoint is read once.
    """
    if hasattr(original, "_reads_constants"):
        return original

    @wraps(original)
    def load_weights(self: Any, model: torch.nn.Module, model_config: Any) -> None:
        kept = _buffers(model)
        original(self, model, model_config)
        for name, buffer in _persistent(model):
            if name in kept and kept[name].shape == buffer.shape:
                buffer.data.copy_(kept[name])
        _load_constants(model, model_config)

    load_weights._reads_constants = True  # type: ignore[attr-defined]
    return load_weights


def is_constant(name: str) -> bool:
    """Returns whether a checkpoint's tensor is, by its name, one that a refit of parameters may leave out."""
    return _PARAMETER.search(name) is None or _CONSTANT.search(name) is not None


def _persistent(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}", buffer


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies the persistent buffers that the model's constructor has given values; others may hold anything."""
    return {name: buffer.clone() for name, buffer in _persistent(model) if bool(buffer.float().isfinite().all())}


def _load_constants(model: Any, model_config: Any) -> None:
    start, size, count = time.monotonic(), 0, 0

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal size, count
        for name, tensor in _constants(str(model_config.model), model_config.revision):
            size, count = size + tensor.nbytes, count + 1
            yield name, tensor

    try:
        model.load_weights(tensors())
    except NoFilesError as error:
        _LOG.warning(
            "%s: buffers and router biases of the model do not have the checkpoint's values until a refit sends them; download "
            "the checkpoint to this machine, or start with load_format=auto",
            error,
        )
    except Exception:
        _LOG.exception(
            "the model does not load buffers by themselves: they do not have the checkpoint's values until a refit sends them; "
            "start with load_format=auto"
        )
    else:
        seconds = time.monotonic() - start
        _LOG.info(
            "dummy start: %d tensors (%d bytes) that no parameter refit sends are the checkpoint's; %.2f s",
            count,
            size,
            seconds,
        )


def _constants(model: str, revision: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    by_file: dict[Path, list[str]] = {}
    for name, file in files_of(model, revision).items():
        if is_constant(name):
            by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        with safe_open(file, "pt") as opened:
            for name in names:
                if prod(opened.get_slice(name).get_shape()) <= _MOST:
                    yield name, opened.get_tensor(name)


def files_of(model: str, revision: str | None = None) -> dict[str, Path]:
    """Returns the file of each tensor of a checkpoint, a folder or an id on the hub; nothing is downloaded.

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
