"""One end of a private socket between a trainer and an engine process, with a time limit and a watch over the other end."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from worker.errors import TransferError

#: Longest path of a Unix socket, in bytes.
_LONGEST_PATH = 107
#: Milliseconds that the last message, often the one with the error, has to leave a socket that is closed.
_LINGER_MS = 1000
#: Milliseconds between two checks whether to wait on.
_POLL_MS = 200
#: Seconds between two looks for the other side's socket.
_LOOK_S = 0.0005


def socket_path(folder: Path, rank: int) -> Path:
    """Returns where the process of a rank listens in an engine's private folder."""
    return folder / f"rank-{rank}.sock"


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


class Channel:
    """A request or reply socket that carries JSON: no pickles.

    Waiting ends as soon as the other process is gone, not only when the time is up.

    Attributes:
        owes: Whether the other side has not been answered yet.
    """

    def __init__(self, kind: int, *, other: str, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> None:
        self._context = zmq.Context()
        self._open(kind)
        self._other = other
        self._timeout_s = timeout_s
        self._given_up = given_up
        self._path: Path | None = None
        self._calls: Path | None = None
        self._called = self._has_received = False
        self._connections = 0
        self._last_sent = b""
        self.owes = False

    @classmethod
    def bind(cls, path: Path, *, other: str, timeout_s: float) -> Channel:
        """Opens the replying end; the socket's file is the owner's alone, and lies in a folder that is, too.

        It waits no longer than that folder exists.

        Args:
            path: Where; a file that is there already, of a process that was killed, is replaced.
            other: What to call the other side in errors.
            timeout_s: Seconds to wait for a message.

        Raises:
            TransferError: The path is too long for a socket, or cannot be bound.
        """
        if len(str(path).encode()) > _LONGEST_PATH:
            raise TransferError(f"refit: {str(path)!r} is too long for a socket ({_LONGEST_PATH} bytes); set refit.socket_dir")
        peer = cls(zmq.REP, other=other, timeout_s=timeout_s, given_up=lambda: not path.parent.exists())
        try:
            path.unlink(missing_ok=True)
            peer._socket.bind(f"ipc://{path}")
            path.chmod(0o600)
        except (OSError, zmq.ZMQError) as error:
            peer.close()
            raise TransferError(f"refit: the socket {str(path)!r} cannot be opened: {error}") from error
        peer._path = path
        return peer

    @classmethod
    def connect(cls, path: Path, *, other: str, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> Channel:
        """Opens the requesting end; the file may appear later.

        Args:
            path: Where the other side listens.
            other: What to call it in errors.
            timeout_s: Seconds to wait for a message.
            given_up: Called while it waits; True ends the wait.
        """
        peer = cls(zmq.REQ, other=other, timeout_s=timeout_s, given_up=given_up)
        peer._calls = path
        return peer

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message.

        Raises:
            TransferError: The other side is gone.
        """
        self.owes = False
        self._last_sent = json.dumps(message).encode()
        if self._calls is not None and not self._called:
            self._wait_for_file(self._calls)
            self._socket.connect(f"ipc://{self._calls}")
            self._called = True
        try:
            self._socket.send(self._last_sent, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN:  # a replying socket whose peer is gone, or a requesting one that never had any
                self._wait(zmq.POLLOUT)
                self._socket.send(self._last_sent, zmq.NOBLOCK)
                return
            raise TransferError(f"refit: {self._other} cannot be reached: {error}") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits for a message.

        Args:
            timeout_s: Seconds to wait; those of the whole transfer if None.

        Raises:
            TransferError: The other side died or closed its socket, took too long, or reports an error of its own.
        """
        self._wait(zmq.POLLIN, timeout_s)
        self.owes = self._has_received = True
        message: dict[str, Any] = json.loads(self._socket.recv(zmq.NOBLOCK))
        if "error" in message:
            raise TransferError(f"refit: {self._other} reports: {message['error']}")
        return message

    def hide(self) -> None:
        """Takes the socket's file away: who is connected stays so, who comes later waits for the next socket."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the socket and takes its file away."""
        self.hide()
        self._shut()
        self._context.term()

    def _open(self, kind: int) -> None:
        self._socket = self._context.socket(kind)
        self._socket.linger = _LINGER_MS
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)  # ms; the other side may bind later
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def _shut(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()

    def _call_again(self) -> None:
        """Connects again: before the first reply, a broken connection means that the peer's old socket was closing."""
        if self._calls is not None:
            kind = int(self._socket.type)
            self._socket.linger = 0
            self._shut()
            self._open(kind)
            self._socket.connect(f"ipc://{self._calls}")
            self._socket.send(self._last_sent, zmq.NOBLOCK)

    def _wait_for_file(self, path: Path) -> None:
        """Waits until the other side listens: ZMQ would look for it at intervals that a refit would notice."""
        deadline = time.monotonic() + self._timeout_s
        while not path.exists():
            if self._given_up():
                raise TransferError(f"refit: given up while waiting for {self._other}")
            if time.monotonic() > deadline:
                raise self._timed_out()
            time.sleep(_LOOK_S)

    def _timed_out(self) -> TransferError:
        return TransferError(
            f"refit: {self._other} did not answer within refit.timeout_s = {self._timeout_s:g} s; is it still alive, "
            "and does it send to this engine?"
        )

    def _wait(self, event: int, timeout_s: float | None = None) -> None:
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            left = deadline - time.monotonic()
            poller = zmq.Poller()
            poller.register(self._socket, event)
            poller.register(self._monitor, zmq.POLLIN)
            ready = dict(poller.poll(int(min(_POLL_MS, max(0.0, left) * 1000))))
            if self._socket in ready:
                return
            if self._monitor in ready:
                self._connections += 1 if recv_monitor_message(self._monitor)["event"] == zmq.EVENT_ACCEPTED else -1
                if self._connections <= 0:  # an earlier trainer may still close
                    if self._has_received:
                        raise TransferError(f"refit: {self._other} died or closed its socket half-way")
                    self._call_again()
            if self._given_up():
                raise TransferError(f"refit: given up while waiting for {self._other}")
            if left <= 0:
                raise self._timed_out()
