"""The trainer's side of a refit in the worker's own process: the sender runs in a thread while the engine updates."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from worker.errors import TransferError

if TYPE_CHECKING:
    import torch

    from worker.refit.collective import CollectiveSender

_T = TypeVar("_T")
#: What a refit sends; called for each pass.
Source = Callable[[], "Iterable[tuple[str, torch.Tensor]]"]


async def alongside(send: Callable[[Callable[[], bool]], None], update: Coroutine[Any, Any, _T]) -> _T:
    """Runs a sender in a thread while the engine's side runs here; each ends when the other fails.

    Args:
        send: Sends; it gets a function that says when to give up.
        update: The engine's side.

    Returns:
        What the engine's side returned.
    """
    over = threading.Event()
    sender = asyncio.ensure_future(asyncio.to_thread(send, over.is_set))
    try:
        result = await update
    except BaseException:
        over.set()
        await asyncio.gather(sender, return_exceptions=True)  # the engine's error says more than that nobody listened
        raise
    await sender
    return result


async def by_file(source: Source, update: Callable[[str], Coroutine[Any, Any, _T]]) -> _T:
    """Writes a file into a private folder and lets the engine load it."""
    from worker.refit.files import write

    with tempfile.TemporaryDirectory(prefix="model-quirks-refit-") as folder:  # created with mode 0700
        file = Path(folder) / "weights.safetensors"
        await asyncio.to_thread(lambda: write(source(), file))
        return await update(str(file))


async def open_collective(
    ip: str,
    world_size: int,
    join: Callable[[int], Coroutine[Any, Any, None]],
    *,
    model: torch.nn.Module,
    engine: list[str],
    timeout_s: float,
) -> CollectiveSender:
    """Opens a collective of this process, rank 0, and engine ranks.

    Args:
        ip: This machine's address.
        world_size: All ranks.
        join: Has the engine ranks join, given the port.
        model: The trainer's model.
        engine: The devices of the engine's processes.
        timeout_s: Seconds to wait for them, and later at each step of a refit.
    """
    from worker.refit.collective import CollectiveSender

    port = free_port(ip)
    device = "cpu" if "cpu" in engine else next(model.parameters()).device
    opening = asyncio.ensure_future(
        asyncio.to_thread(CollectiveSender, ip, port, world_size=world_size, device=device, timeout_s=timeout_s)
    )
    try:
        await join(port)
    except BaseException:
        await asyncio.gather(opening, return_exceptions=True)
        raise
    return await opening


def shared_device(model: torch.nn.Module, engine: list[str]) -> torch.device:
    """Returns where buffers between a model and an engine lie: their common GPU, else the CPU.

    Args:
        model: The trainer's model.
        engine: The devices of the engine's processes.
    """
    import torch

    from worker.refit.buffers import device_id

    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    return device if set(engine) == {device_id(device)} else torch.device("cpu")


def free_port(ip: str) -> int:
    """Returns a port that nobody listens on just now.

    Raises:
        TransferError: The address is not one of this machine.
    """
    import socket

    try:
        with socket.create_server((ip, 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise TransferError(f"refit: nothing can listen on {ip}: {error}") from error
