"""What every process acknowledged and what the engine really runs with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quirks_core.context import Record
from quirks_core.errors import ReceiptError


class Effect(Record):
    """One thing that was changed, or found as wanted, in a process."""

    slot: str
    before: Any
    after: Any


class Acknowledgement(Record):
    """What one process has.

    Attributes:
        pid: Process id.
        process: Name of the process, for example ``EngineCore_DP0``.
        digest: Digest of the plan that the process carries out, computed there from what it received.
        effects: The environment variables and patches, with the values before and after.
    """

    pid: int
    process: str
    digest: str
    effects: tuple[Effect, ...] = ()

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
        before: The value before quirks; None if it was left open.
        planned: The value that the plan gives it; None if the plan leaves it open.
        engine: The value the engine runs with.
        binding: A quirk asked for the planned value, so that another one is an error.
    """

    slot: str
    before: Any = None
    planned: Any
    engine: Any
    binding: bool = False


class Receipt(Record):
    """What every process has, and the engine's own values."""

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


def collect(folder: Path, digest: str, expected: Mapping[int, str], engine: Iterable[ReadBack] = ()) -> Receipt:
    """Makes the receipt, and makes sure that it is complete.

    Args:
        folder: Where the processes acknowledge.
        digest: Digest of the plan.
        expected: Name by process id of every process that must acknowledge.
        engine: The engine's values, read back.

    Raises:
        ReceiptError: A process is missing, carries out another plan, or the engine changed a value that a quirk set.
    """
    # Helper processes that vLLM starts for a moment acknowledge too; the receipt is about those that stay.
    acknowledgements = tuple(ack for ack in read_acknowledgements(folder) if ack.pid in expected)
    known = {ack.pid: ack for ack in acknowledgements}
    read_back = tuple(engine)
    problems = [f"{name} (process {pid}) did not acknowledge the plan" for pid, name in expected.items() if pid not in known]
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
    if problems:
        raise ReceiptError("the plan is not in force everywhere: " + "; ".join(problems))
    return Receipt(digest=digest, processes=acknowledgements, engine=read_back)
