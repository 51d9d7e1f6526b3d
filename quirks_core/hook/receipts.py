"""The file that receipts are written to, as JSON: one for every engine that the processes of a run bring up.

All processes on a machine that have the same MODEL_QUIRKS_RECEIPT write into one file, each under a lock. Machines that share
no file system have a file each.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import to_json

from quirks_core.base.errors import ReceiptError, UsageError
from quirks_core.base.record import Record
from quirks_core.base.text import printable
from quirks_core.ledger.account import Account
from quirks_core.plan.receipt import Acknowledgement, Receipt


class Receipts(Record):
    """The content of the file.

    Attributes:
        version: The version of its schema, ``schema`` in the file.
        engines: A receipt for every engine core.
        front_ends: The processes that planned, or took the plan of the process that started them: scripts and API servers.
        problems: Why an engine got no receipt.
        accounts: What became of new weights, for every engine core that got some.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    version: Literal[1] = Field(1, alias="schema")
    engines: tuple[Receipt, ...] = ()
    front_ends: tuple[Acknowledgement, ...] = ()
    problems: tuple[str, ...] = ()
    accounts: tuple[Account, ...] = ()


#: Where the file has them.
_SECTIONS = {Receipt: "engines", Acknowledgement: "front_ends", str: "problems", Account: "accounts"}


def read(file: Path) -> Receipts:
    """Reads the file; an empty one, or none, holds nothing.

    Raises:
        ReceiptError: It holds something else.
    """
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH)
            return _read(opened)
    except FileNotFoundError:
        return Receipts()
    except OSError as error:
        raise ReceiptError(f"{file} cannot be read: {error.strerror}") from None
    except ValidationError:
        raise ReceiptError(f"{file} holds no receipts") from None


def begin(file: Path, *, keep_problems: bool = False, only_new: bool = False) -> None:
    """Makes sure that the file can be written, and takes out what is left of processes that have ended, or everything.

    With `keep_problems`, those of all engines of the run stay, for a program that watches it as a whole.

    Raises:
        UsageError: It cannot be written, or holds something else.
    """
    try:
        with _changing(file) as found:
            for section in ("engines", "front_ends", "accounts"):
                found[section] = [one for one in found[section] if not only_new and _may_be_alive(one)]
            if not keep_problems:
                found["problems"] = []
    except OSError as error:
        raise UsageError(f"MODEL_QUIRKS_RECEIPT={file}: {error.strerror}; name a regular file that can be written") from None
    except ValidationError:
        raise UsageError(f"MODEL_QUIRKS_RECEIPT={file}: the file is there, and holds no receipts; name another one") from None


def add(file: Path | None, entry: Receipt | Acknowledgement | Account | str) -> None:
    """Adds the receipt or the account of an engine's core, a process that has a plan, or why an engine got no receipt.

    An account, or a process, takes the place of the one before; of an account, digests by tensor are left out. Without a file,
    nothing is written.
    """
    if file is None:
        return
    if isinstance(entry, Account):
        entry = entry.model_copy(update={"entries": ()})
    section = _SECTIONS[type(entry)]
    with _changing(file) as found:
        if isinstance(entry, Acknowledgement | Account):
            found[section] = [one for one in found[section] if (one["host"], one["pid"]) != (entry.host, entry.pid)]
        found[section].append(printable(entry) if isinstance(entry, str) else entry.model_dump(mode="json"))


@contextmanager
def _changing(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("a+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        found = _read(opened).model_dump(mode="json")
        yield found
        text = to_json(found, indent=1) + b"\n"  # json.dumps indents in Python, while an update of weights waits
        opened.truncate(0)
        opened.write(text)


def _read(opened: BinaryIO) -> Receipts:
    text = opened.read()
    return Receipts.model_validate_json(text) if text.strip() else Receipts()


def _may_be_alive(entry: dict[str, Any]) -> bool:
    """Returns whether a process still runs, as far as it can be seen from this machine; of an engine, its core."""
    if entry["host"] != socket.gethostname():
        return True
    try:
        os.kill(entry["processes"][0]["pid"] if "processes" in entry else entry["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
