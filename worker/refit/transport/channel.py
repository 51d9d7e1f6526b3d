"""One end of a private socket between a trainer and an engine process, with a time limit and a watch over the other end."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from worker.errors import TransferError

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
    """A connection that carries JSON, a line for each message, and both ways in turn: no pickles.

    Waiting ends as soon as the other process is gone, not only when the time is up.
    """

    def __init__(self, path: Path, *, other: str, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Prepares the calling end, which connects with its first message; the other side's file may appear later.

        Args:
            path: Where the other side listens.
            other: What to call it in errors.
            timeout_s: Seconds to wait for a message.
            given_up: Called while it waits; True ends the wait.
        """
        self._path = path
        self._other = other
        self._timeout_s = timeout_s
        self._given_up = given_up
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._lines: BinaryIO

    @classmethod
    def bind(cls, path: Path, *, other: str, timeout_s: float) -> Channel:
        """Opens the answering end; the socket's file is the owner's alone, and lies in a folder that is, too.

        It waits no longer than that folder exists. The file is gone with the first message: who comes later waits for the next
        socket.

        Args:
            path: Where; a file that is there already, of a process that was killed, is replaced.
            other: What to call the other side in errors.
            timeout_s: Seconds to wait for a message.

        Raises:
            TransferError: The path cannot be bound; one of more than 107 bytes is too long for a socket.
        """
        channel = cls(path, other=other, timeout_s=timeout_s, given_up=lambda: not path.parent.exists())
        channel._listener = socket.socket(socket.AF_UNIX)
        try:
            path.unlink(missing_ok=True)
            channel._listener.bind(str(path))
            path.chmod(0o600)
            channel._listener.listen()
        except OSError as error:
            channel.close()
            raise TransferError(f"refit: the socket {str(path)!r} cannot be opened: {error}; see TMPDIR") from error
        return channel

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; if the other side is gone, `receive` returns what it sent before, or says so.

        Raises:
            TransferError: The other side does not come, or does not read.
        """
        if self._connection is None and self._listener is not None:
            return  # nobody came
        connection = self._connection or self._opened(time.monotonic() + self._timeout_s)
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # `receive` finds it out
        except OSError as error:
            raise self._unreachable(error) from error

    def receive(self) -> dict[str, Any]:
        """Waits for a message.

        Raises:
            TransferError: The other side died or closed its socket, took too long, or reports an error of its own.
        """
        deadline = time.monotonic() + self._timeout_s
        self._wait(self._connection or self._opened(deadline), deadline)
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = b""
        except OSError as error:
            raise self._unreachable(error) from error
        self._stop_listening()
        if not line.endswith(b"\n"):
            raise TransferError(f"refit: {self._other} died or closed its socket half-way")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise TransferError(f"refit: {self._other} reports: {message['error']}")
        return message

    def close(self) -> None:
        """Closes the socket and takes its file away."""
        self._stop_listening()
        if self._connection is not None:
            self._lines.close()
            self._connection.close()

    def _opened(self, deadline: float) -> socket.socket:
        """Takes the other side's connection, or connects as soon as it listens."""
        if self._listener is not None:
            self._wait(self._listener, deadline)
            connection, _ = self._listener.accept()
        else:
            connection = self._connected(deadline)
        connection.settimeout(self._timeout_s)
        self._connection, self._lines = connection, connection.makefile("rb")
        return connection

    def _connected(self, deadline: float) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                connection.close()
                self._check(deadline)
                time.sleep(_LOOK_S)
            except OSError as error:
                connection.close()
                raise self._unreachable(error) from error
            else:
                return connection

    def _unreachable(self, error: OSError) -> TransferError:
        return TransferError(f"refit: {self._other} cannot be reached: {error}")

    def _wait(self, one: socket.socket, deadline: float) -> None:
        poll = select.poll()
        poll.register(one, select.POLLIN)
        while not poll.poll(min(_POLL_MS, max(0.0, deadline - time.monotonic()) * 1000)):
            self._check(deadline)

    def _check(self, deadline: float) -> None:
        if self._given_up():
            raise TransferError(f"refit: given up while waiting for {self._other}")
        if time.monotonic() > deadline:
            raise TransferError(
                f"refit: {self._other} did not answer within refit.timeout_s = {self._timeout_s:g} s; is it still alive, "
                "and does it send to this engine?"
            )

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._listener.close()
            self._listener = None
