"""The finished results of a parity run on disk, so that an interrupted run can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from quirks_core.base import whole_file
from quirks_core.base.errors import UsageError
from worker.lab.parity.records import FORMAT, ParityRecord

_R = TypeVar("_R", bound=ParityRecord)


class Store:
    """Finished results by name; only in memory if there is no file.

    Attributes:
        found: Number of results of an earlier run.
        differs: If there are none, what distinguishes the last run that another file beside holds, by key of `run`.
        last: That file; None if there is none.
    """

    def __init__(self, file: Path | None, run: Mapping[str, Any]) -> None:
        """Reads the results of an earlier run of the same kind.

        Args:
            file: Where they are; a part of the digest of `run` is put into its name, so that runs that differ keep theirs
                side by side.
            run: Everything that affects the measurement.
        """
        parts = {key: _digest(value) for key, value in run.items()}
        digest = _digest([FORMAT, parts])
        self._file = None if file is None else file.with_stem(f"{file.stem}-{digest[:8]}")
        self._held: dict[str, Any] = {"run": digest, "parts": parts, "pieces": {}}
        if self._file is not None and self._file.is_file():
            held = json.loads(self._file.read_bytes())
            self._held = held if held["run"] == digest else self._held
        self.found = len(self._held["pieces"])
        self.last: Path | None = None
        self.differs: tuple[str, ...] = ()
        if file is not None and not self.found:
            others = [other for other in file.parent.glob(f"{file.stem}-*{file.suffix}") if other != self._file]
            self.last = max(others, key=lambda other: other.stat().st_mtime, default=None)
        if self.last is not None:
            theirs = json.loads(self.last.read_bytes())["parts"]
            self.differs = tuple(sorted(key for key in {*parts, *theirs} if parts.get(key) != theirs.get(key)))

    def get(self, name: str, kind: type[_R]) -> _R | None:
        """Returns a result; None if it is missing or unreadable."""
        pieces = self._held["pieces"]
        try:
            return kind.model_validate(pieces[name]) if name in pieces else None
        except ValidationError:
            return None

    def put(self, name: str, piece: ParityRecord) -> None:
        """Stores a result."""
        self._held["pieces"][name] = piece.model_dump(mode="json")
        if self._file is not None:
            write_text(self._file, json.dumps(self._held))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


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
