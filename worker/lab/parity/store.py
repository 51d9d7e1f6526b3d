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
            file: JSON lines; created with the first result, with a part of the digest of `run` in its name, so that runs that
                differ keep their results side by side.
            run: Everything that affects the measurement.
        """
        self._parts = {key: _digest(value) for key, value in run.items()}
        self._run = _digest(self._parts)
        self._file = None if file is None else file.with_stem(f"{file.stem}-{self._run[:8]}")
        self._begun = False
        self._pieces = self._read()
        self.found = len(self._pieces)
        self.last, self.differs = (None, ()) if file is None or self.found else self._compare(file)

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
            head = json.dumps({"format": FORMAT, "run": self._run, "parts": self._parts}) + "\n"
            write_text(self._file, head + "".join(map(self._line, self._pieces)))
        self._begun = True

    def _line(self, name: str) -> str:
        return json.dumps({"name": name, "piece": self._pieces[name]}) + "\n"

    def _read(self) -> dict[str, Any]:
        if self._file is None or not self._file.is_file():
            return {}
        head, *found = _lines(self._file) or [{}]
        if (head.get("format"), head.get("run")) != (FORMAT, self._run):
            return {}
        return {item["name"]: item["piece"] for item in found}

    def _compare(self, file: Path) -> tuple[Path | None, tuple[str, ...]]:
        """Returns the newest file of another run, and the keys in which that run differs."""
        others = [other for other in file.parent.glob(f"{file.stem}-*{file.suffix}") if other != self._file]
        if not others:
            return None, ()
        last = max(others, key=lambda other: other.stat().st_mtime)
        parts = (_lines(last) or [{}])[0].get("parts", {})
        return last, tuple(sorted(key for key in {*parts, *self._parts} if parts.get(key) != self._parts.get(key)))


def _lines(file: Path) -> list[Any]:
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # the run was killed while it wrote
    return found


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
