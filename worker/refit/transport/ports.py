"""Ports at which a trainer and an engine meet."""

from __future__ import annotations

import socket

from worker.errors import TransferError


def free_port(ip: str) -> int:
    """Returns a port that nobody listens on just now.

    Raises:
        TransferError: The address is not one of this machine.
    """
    try:
        with socket.create_server((ip, 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise TransferError(f"refit: nothing can listen on {ip}: {error}") from error
