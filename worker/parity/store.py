"""The finished results of a parity run on disk, so that an interrupted run can be resumed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from quirks_core.errors import UsageError
from worker.parity.records import FORMAT, ParityRecord

_R = TypeVar("_R", bound=ParityRecord)


class Store:
    """Finished results by name; only in memory if there is no file.

    Attributes:
        found: Number of results of an earlier run.
    """

    def __init__(self, file: Path | None, run: Mapping[str, Any]) -> None:
        """Reads the results of an earlier run of the same kind.

        Args:
            file: JSON lines; created with the first result. A file of another run is then overwritten.
            run: Everything that affects the measurement.
        """
        self._file = file
        self._run = hashlib.sha256(json.dumps(run, sort_keys=True, default=str).encode()).hexdigest()
        self._begun = False
        self._pieces = self._read()
        self.found = len(self._pieces)

    def get(self, name: str, kind: type[_R]) -> _R | None:
        """Returns a result; None if it is missing or unreadable."""
        try:
            return kind.model_validate(self._pieces[name]) if name in self._pieces else None
        except ValidationError:
            return None

    def put(self, name: str, piece: ParityRecord) -> None:
        """Stores a result."""
        self._pieces[name] = piece.model_dump(mode="json")
        if self._file is None:
            return
        if self._begun:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(self._line(name))
        else:  # all of it: an earlier run may have been killed in the middle of a line
            head = json.dumps({"format": FORMAT, "run": self._run}) + "\n"
            write_text(self._file, head + "".join(map(self._line, self._pieces)))
        self._begun = True

    def _line(self, name: str) -> str:
        return json.dumps({"name": name, "piece": self._pieces[name]}) + "\n"

    def _read(self) -> dict[str, Any]:
        if self._file is None or not self._file.is_file():
            return {}
        found = []
        for line in self._file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break  # the run was killed while it wrote
        if not found or (found[0].get("format"), found[0].get("run")) != (FORMAT, self._run):
            return {}
        return {item["name"]: item["piece"] for item in found[1:]}


def write_text(file: Path, text: str) -> None:
    """Writes a file; a reader sees the old one or the whole new one.

    Raises:
        UsageError: It cannot be written there.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
            draft = Path(folder, file.name)
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None
