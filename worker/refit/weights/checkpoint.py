"""The safetensors files of a checkpoint: what they hold, and their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import UsageError
from worker.refit.weights.manifest import Manifest, TensorSpec

if TYPE_CHECKING:
    import torch

#: torch's names of the dtypes that a safetensors file may hold.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


def held(folder: Path) -> Manifest:
    """Describes the tensors of a checkpoint's safetensors files, as `Manifest.check` takes them; of none that it cannot read.

    Args:
        folder: The checkpoint; it need not exist.
    """
    from safetensors import SafetensorError

    specs: list[TensorSpec] = []
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, KeyError, ValueError, SafetensorError):
            specs += _opened(path)[1].tensors
    return Manifest(tuple(specs), announced=False)


def read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a checkpoint's safetensors files by name, sorted, each mapped from its file.

    Args:
        folder: The checkpoint.

    Raises:
        UsageError: It has no such files, or one is not complete.
    """
    from safetensors import SafetensorError

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder} holds no safetensors files; name the folder of a checkpoint")
    try:
        places = {name: file for file, manifest in map(_opened, files) for name in (spec.name for spec in manifest.tensors)}
        for name in sorted(places):
            yield name, places[name].get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{folder} holds a file that is no complete safetensors file: {error}") from error


def _opened(path: Path) -> tuple[Any, Manifest]:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt", device="cpu")
    slices = {name: file.get_slice(name) for name in list(file.keys())}
    rows = [(name, _DTYPES[item.get_dtype()], item.get_shape()) for name, item in slices.items()]
    return file, Manifest.decode(rows)
