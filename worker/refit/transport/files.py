"""The file that carries a refit's tensors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import UsageError
from worker.errors import RefitRejectedError
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


def write(tensors: Iterable[tuple[str, torch.Tensor]], path: Path) -> None:
    """Writes tensors to a safetensors file, which appears complete or not at all.

    The file is readable by its owner only. A file of the same name is replaced, not overwritten: a worker that still
    has the old one mapped keeps its content.

    Args:
        tensors: Names and tensors of any shape, dtype and device. Tensors that share memory are written separately.
        path: The file; its folder must exist. Make it a private one (``0700``, as from ``tempfile.mkdtemp``).

    Raises:
        ValueError: Two tensors have the same name.
        OSError: The file cannot be written.
    """
    from safetensors.torch import save_file

    payload: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors:
        if name in payload:
            raise ValueError(f"two tensors are called {name!r}")
        host = tensor.cpu()
        storage = host.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, as tied parameters and the views of a fused one do.
        payload[name] = host.clone() if storage in storages else host
        storages.add(storage)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
    os.close(handle)
    try:
        save_file(payload, temporary)
        Path(temporary).chmod(0o600)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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


class FileStream:
    """An engine process' end: a file, opened and compared with what was announced.

    Attributes:
        manifest: What the file holds.
        complete: Whether everything was yielded.
    """

    complete = False

    def __init__(self, path: Path, expected: Manifest | None) -> None:
        """Opens the file, which checks that its header is sound and that all tensors lie within it.

        Args:
            path: Absolute; it must not be changed in place while it is open: tensors are mapped into memory.
            expected: What was announced.

        Raises:
            RefitRejectedError: There is no such file here, it is incomplete, or it differs from what was announced.
        """
        from safetensors import SafetensorError

        if not path.is_file():
            raise RefitRejectedError(
                f"refit rejected, nothing was loaded: no file {str(path)!r} in the engine's process; "
                "trainer and engine must share the file system that it is on"
            )
        try:
            self._file, self.manifest = _opened(path)
        except SafetensorError as error:
            raise RefitRejectedError(
                f"refit rejected, nothing was loaded: {str(path)!r} is not a complete safetensors file: {error}"
            ) from error
        self.manifest.check(expected)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and tensors, mapped from the file."""
        for spec in self.manifest.tensors:
            yield spec.name, self._file.get_tensor(spec.name)
        self.complete = True

    def borrowed(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yields the same one by one."""
        return ([item] for item in self)

    def __enter__(self) -> FileStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__(None, None, None)
