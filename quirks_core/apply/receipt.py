"""The acknowledgements of all processes, and the values that the engine really uses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from quirks_core.base.errors import ReceiptError
from quirks_core.base.record import Record

_POLL_S = 0.05


class Effect(Record):
    """One change in a process, or a value that was already as planned.

    Attributes:
        slot: ``env.NAME``, or ``patch.`` and the target.
        before: The variable's value; the fingerprint of a target's source.
        after: The variable's value; the source of a patch's code.
        pending: The patch's module is not imported in this process yet.
    """

    slot: str
    before: Any
    after: Any
    pending: bool = False


class Acknowledgement(Record):
    """The acknowledgement of one process.

    Attributes:
        pid: Process id.
        process: Name of the process, for example ``EngineCore_DP0``.
        digest: Digest of the plan that the process applies, computed in the process from what it received.
        effects: The environment variables and patches, with the values before and after.
        engine: Values by slot in the process's own engine configuration; empty if it has none, or none yet.
        host: Name of its machine.
    """

    pid: int
    process: str
    digest: str
    effects: tuple[Effect, ...] = ()
    engine: dict[str, Any] = Field(default_factory=dict)
    host: str = ""

    def write(self, folder: Path) -> None:
        """Writes the acknowledgement where the driver looks for it, atomically."""
        file = folder / f"ack-{self.pid}.json"
        draft = file.with_suffix(".draft")
        draft.write_text(self.model_dump_json(), encoding="utf-8")
        draft.replace(file)


class ReadBack(Record):
    """A slot of the engine's own configuration.

    Attributes:
        slot: Name of the slot.
        before: The value before quirks; None if it was not set.
        planned: The planned value; None if the plan does not set it.
        engine: The value that the engine uses.
        binding: A quirk asked for the planned value, so another value is an error.
    """

    slot: str
    before: Any = None
    planned: Any
    engine: Any
    binding: bool = False


class Receipt(Record):
    """The acknowledgements of all processes, and the values read back from the engine."""

    digest: str
    processes: tuple[Acknowledgement, ...]
    engine: tuple[ReadBack, ...] = ()


def read_acknowledgements(folder: Path) -> tuple[Acknowledgement, ...]:
    """Reads what has been acknowledged so far, sorted by process name.

    Raises:
        ReceiptError: A file cannot be read as an acknowledgement.
    """
    found = []
    for file in sorted(folder.glob("ack-*.json")):
        try:
            found.append(Acknowledgement.model_validate_json(file.read_text(encoding="utf-8")))
        except (OSError, ValidationError) as error:
            raise ReceiptError(f"acknowledgement {file.name} cannot be read: {error}") from None
    return tuple(sorted(found, key=lambda ack: (ack.pid != os.getpid(), ack.process, ack.pid)))


def collect(
    folder: Path, digest: str, expected: Mapping[int, str], engine: Iterable[ReadBack] = (), *, wait_s: float = 0.0
) -> Receipt:
    """Makes the receipt, and makes sure that it is complete.

    Args:
        folder: Where the processes acknowledge.
        digest: Digest of the plan.
        expected: Name by process id of every process that must acknowledge.
        engine: The engine's values, read back.
        wait_s: Seconds to wait for acknowledgements that are not there yet.

    Raises:
        ReceiptError: A process is missing or late, applies another plan, or the engine changed a value that a quirk set.
    """
    acknowledgements = _wait_for(folder, expected, wait_s)
    known = {ack.pid for ack in acknowledgements}
    read_back = tuple(engine)
    late = f" within {wait_s:g} s" if wait_s else ""
    problems = [
        f"{name} (process {pid}) did not acknowledge the plan{late}" for pid, name in expected.items() if pid not in known
    ]
    problems += [
        f"{ack.process} (process {ack.pid}) carries out plan {ack.digest[:12]}… instead of {digest[:12]}…"
        for ack in acknowledgements
        if ack.digest != digest
    ]
    problems += [
        f"{item.slot}: the plan wanted {item.planned!r}, the engine has {item.engine!r}"
        for item in read_back
        if item.binding and item.planned != item.engine
    ]
    problems += [
        f"{item.slot}: the plan wanted {item.planned!r}, {ack.process} (process {ack.pid}) has {ack.engine[item.slot]!r}"
        for ack in acknowledgements
        for item in read_back
        if item.binding and item.slot in ack.engine and ack.engine[item.slot] != item.planned
    ]
    if problems:
        raise ReceiptError("the plan is not in force everywhere: " + "; ".join(problems))
    return Receipt(digest=digest, processes=acknowledgements, engine=read_back)


def _wait_for(folder: Path, expected: Mapping[int, str], wait_s: float) -> tuple[Acknowledgement, ...]:
    """Reads the acknowledgements of the expected processes, as soon as all are there or the time is over."""
    deadline = time.monotonic() + wait_s
    while True:
        # Short-lived helper processes of vLLM acknowledge too; the receipt contains only the processes that stay.
        found = tuple(ack for ack in read_acknowledgements(folder) if ack.pid in expected)
        if len({ack.pid for ack in found}) == len(expected) or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)
