"""The finished results of a parity run on disk, so that an interrupted run can be resumed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from quirks_core.base import whole_file
from quirks_core.base.errors import UsageError
from worker.lab.parity.records import FORMAT, ParityRecord

_R = TypeVar("_R", bound=ParityRecord)


class Store:
    """Finished results by name; only in memory if there is no file.

    Attributes:
        found: Number of results of an earlier run.
    """

    def __init__(self, file: Path | None, run: Any) -> None:
        """Reads the results of an earlier run of the same kind.

        Args:
            file: Where they are; a part of the digest of `run` is put into its name, so that runs that differ keep theirs
                side by side.
            run: Everything that affects the measurement, as JSON can hold it.
        """
        digest = hashlib.sha256(json.dumps([FORMAT, run], sort_keys=True, default=str).encode()).hexdigest()
        self._file = None if file is None else file.with_stem(f"{file.stem}-{digest[:12]}")
        self._pieces: dict[str, Any] = {}
        if self._file is not None and self._file.is_file():
            self._pieces = json.loads(self._file.read_bytes())
        self.found = len(self._pieces)

    def get(self, name: str, kind: type[_R]) -> _R | None:
        """Returns a result; None if it is missing."""
        return kind.model_validate(self._pieces[name]) if name in self._pieces else None

    def put(self, name: str, piece: ParityRecord) -> None:
        """Stores a result."""
        self._pieces[name] = piece.model_dump(mode="json")
        if self._file is not None:
            write_text(self._file, json.dumps(self._pieces))


def write_text(file: Path, text: str) -> None:
    """Writes a file as `whole_file.write` does, and makes its folder.

    Raises:
        UsageError: It cannot be written there.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole_file.write(file, text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None
