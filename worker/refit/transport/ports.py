"""Ports of the connection between a trainer and an engine."""

from __future__ import annotations

import socket

from worker.errors import TransferError


def free_port(ip: str) -> int:
    """Returns a port that is free at this moment.

    Raises:
        TransferError: The address is not one of this machine.
    """
    try:
        with socket.create_server((ip, 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise TransferError(f"refit: nothing can listen on {ip}: {error}") from error
