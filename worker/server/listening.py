"""The address of a server: a listening socket and the URL that others use."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from quirks_core.configuration.config import GenerationConfig
from worker.server.errors import ServerStartError

_EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104  # compared with, not listened on


class Listener:
    """A listening socket: its port is taken, and clients can connect and wait.

    Args:
        config: The configuration; ``server`` and ``cluster.num_nodes`` set where to listen.

    Attributes:
        host: The address that is listened on, as configured.
        socket: The socket.
        base_url: ``http://host:port/v1``, reachable from other nodes if the server listens on every interface.

    Raises:
        ServerStartError: The address cannot be listened on.
    """

    def __init__(self, config: GenerationConfig) -> None:
        section = config.server
        everywhere = config.cluster.num_nodes > 1 and not section.rl_routes
        self.host = section.host or ("0.0.0.0" if everywhere else "127.0.0.1")  # noqa: S104
        host, port = self.host, section.port
        try:
            family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.socket = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=host == "::")
        except OSError as error:
            raise ServerStartError(
                f"the server cannot listen at {host} port {port}: {error.strerror}; change server.host or server.port"
            ) from None
        # Its connections inherit this. asyncio leaves it out for such a socket, and each event would wait for an ACK.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = _own_address() if host in _EVERY_INTERFACE else host
        self.base_url = f"http://{f'[{name}]' if ':' in name else name}:{self.socket.getsockname()[1]}/v1"

    def close(self) -> None:
        """Frees the port; can be called more than once."""
        # An engine process that was forked since then has the socket too, and would keep it listening after a close.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _own_address() -> str:
    """Finds the address by which other nodes reach this one."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.util.get_node_ip_address())
    if stated := os.environ.get("VLLM_HOST_IP"):
        return stated
    # Connecting a datagram socket sends nothing; it only reads the routing table.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"
