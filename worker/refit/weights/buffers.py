"""Memory that a trainer fills and engine processes on the same machine read: anonymous on the host, CUDA IPC on a GPU."""

from __future__ import annotations

import base64
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from worker.engine.topology import device_id
from worker.errors import RefitError, TransferError
from worker.refit.weights.manifest import TensorSpec


class Buffer(NamedTuple):
    """Bytes that two processes share.

    Attributes:
        memory: [nbytes] uint8, on the CPU or a GPU.
        handle: JSON values with which another process opens the same memory (`open_memory`).
    """

    memory: torch.Tensor
    handle: Mapping[str, Any]


@contextmanager
def shared_buffer(nbytes: int, device: torch.device) -> Iterator[Buffer]:
    """Makes a buffer; afterwards no process can open it any more, and its memory stays while one has it open.

    Host memory is an anonymous file (``memfd``): it has no name that could be left behind, ends with its last process, and
    does not count against the size of ``/dev/shm``. A peer opens it through ``/proc`` with the rights of the same user.

    Args:
        nbytes: Its size.
        device: The CPU, or the GPU that the receiving engine process runs on as well.

    Raises:
        RefitError: There is not enough memory.
    """
    if device.type == "cuda":
        # A multiple of the allocator's 2 MiB blocks gets a segment of its own, so a peer maps nothing else.
        memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        yield Buffer(memory, share_memory(memory.untyped_storage()))
        return
    file = os.memfd_create("model-quirks-refit")
    try:
        try:
            os.truncate(file, nbytes)
            os.posix_fallocate(file, 0, nbytes)  # now, with an error; a write to memory that is not there kills the process
            view = mmap.mmap(file, nbytes)
        except OSError as error:
            raise RefitError(
                f"refit: no {nbytes} bytes of shared memory: {error.strerror}; free memory, or lower refit.buffer_mb"
            ) from error
        yield Buffer(torch.frombuffer(view, dtype=torch.uint8), _file_handle(file, nbytes))
    finally:
        os.close(file)


def view(memory: torch.Tensor, spec: TensorSpec, offset: int) -> torch.Tensor:
    """Returns the tensor that lies in a buffer.

    Args:
        memory: [N] uint8.
        spec: The tensor.
        offset: Where it starts, in bytes.
    """
    return memory[offset : offset + spec.nbytes].view(spec.torch_dtype).view(spec.shape)


def share_memory(storage: torch.UntypedStorage) -> dict[str, Any]:
    """Returns JSON values with which another process opens some memory as long as this one has it.

    Args:
        storage: On a GPU, or on the host and shared by a file descriptor (``Tensor.share_memory_``).
    """
    if storage.device.type != "cuda":
        return _file_handle(*storage._share_fd_cpu_())
    # What torch.multiprocessing sends, without its pickle.
    parts = storage._share_cuda_()
    return {
        "kind": "cuda",
        "uuid": device_id(storage.device),
        "nbytes": storage.nbytes(),
        "parts": [base64.b64encode(part).decode() if isinstance(part, bytes) else part for part in parts],
        "bytes": [index for index, part in enumerate(parts) if isinstance(part, bytes)],
    }


def open_memory(handle: Mapping[str, Any], device: torch.device, *, elsewhere: bool = False) -> torch.Tensor:
    """Opens another process' memory as [nbytes] uint8.

    Args:
        handle: A `Buffer.handle`, or what `share_memory` returned.
        device: Where this process computes.
        elsewhere: Open the memory of another GPU, too.

    Raises:
        TransferError: It is gone, belongs to another user, or lies on another GPU.
    """
    if handle["kind"] == "cuda":
        if elsewhere:
            seen = (torch.device("cuda", number) for number in range(torch.cuda.device_count()))
            device = next((one for one in seen if device_id(one) == handle["uuid"]), device)
        if handle["uuid"] != device_id(device):
            raise TransferError(
                f"refit by ipc_zmq: the trainer's buffer is on {handle['uuid']}, this engine process runs on "
                f"{device_id(device)}; trainer and engine must share the GPU, else use refit.transport=collective"
            )
        parts = [base64.b64decode(part) if index in handle["bytes"] else part for index, part in enumerate(handle["parts"])]
        parts[0] = device.index if device.index is not None else torch.cuda.current_device()  # numbered otherwise over there
        storage = torch.UntypedStorage._new_shared_cuda(*parts)
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (handle["nbytes"],), (1,))
    try:
        with Path(handle["path"]).open("r+b") as file:
            view = mmap.mmap(file.fileno(), handle["nbytes"])
    except (OSError, ValueError) as error:
        raise TransferError(
            f"refit by ipc_zmq: the trainer's shared memory cannot be opened: {error}; "
            "both processes must run on one machine, in one process namespace, as one user"
        ) from error
    return torch.frombuffer(view, dtype=torch.uint8)


def _file_handle(file: int, nbytes: int) -> dict[str, Any]:
    return {"kind": "file", "path": f"/proc/{os.getpid()}/fd/{file}", "nbytes": nbytes}
