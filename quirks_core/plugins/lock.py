"""The lock file: which quirks a run was made with, to be kept beside its checkpoints and held against another installation."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from quirks_core.base import whole_file
from quirks_core.base.errors import DeclarationError, QuirksError, UsageError
from quirks_core.base.record import Record
from quirks_core.declaration import encoding as declaration
from quirks_core.plan.loaded import Loaded
from quirks_core.plugins.registry import Registry


class LockError(QuirksError):
    """The loaded quirks are not those of the lock file; the message lists every difference."""

    def __init__(self, file: str, differences: tuple[str, ...]) -> None:
        self.differences = differences
        remedy = "install what the file names, or write a new one with 'quirks lock'"
        super().__init__("\n".join([f"the quirks are not those of {file}; {remedy}:", *(f"- {item}" for item in differences)]))


class LockedQuirk(Record):
    """One quirk of a lock file; the digest is that of its declaration and of the functions that it names."""

    id: str
    distribution: str
    version: str
    digest: str

    @classmethod
    def of(cls, item: Loaded) -> LockedQuirk:
        """Locks one quirk.

        Raises:
            DeclarationError: Something in it is neither data nor a function.
        """
        try:
            digest = declaration.digest(item.quirk)
        except DeclarationError as error:
            raise DeclarationError(f"{item} cannot be locked: {error}") from None
        return cls(id=item.quirk.id, distribution=item.distribution, version=item.version, digest=digest)

    def __str__(self) -> str:
        return f"{self.id} of {self.distribution} {self.version}"


class Lock(Record):
    """The content of a lock file."""

    format: Literal[1] = 1
    quirks: tuple[LockedQuirk, ...]

    @classmethod
    def of(cls, registry: Registry) -> Lock:
        """Locks what is loaded."""
        return cls(quirks=tuple(map(LockedQuirk.of, registry.loaded)))

    @classmethod
    def read(cls, file: str | Path) -> Lock:
        """Reads a lock file.

        Raises:
            UsageError: It cannot be read, or is no lock file.
        """
        try:
            return cls.model_validate_json(Path(file).read_bytes())
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"lock file {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        except ValidationError:
            raise UsageError(f"{file} is no lock file; 'quirks lock' writes one") from None

    def write(self, file: str | Path) -> None:
        """Writes the lock file; a reader never sees half of it.

        Raises:
            UsageError: It cannot be written.
        """
        try:
            whole_file.write(Path(file), self.model_dump_json(indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"lock file {file} cannot be written: {error.strerror}") from None

    def differences(self, registry: Registry) -> tuple[str, ...]:
        """Returns how what is loaded differs, in words; empty if it does not. What is switched off has no effect, and may."""
        off = {row.plugin.name if row.is_alone else row.plugin.distribution for row in registry.skipped}
        locked = {item.id: item for item in self.quirks if off.isdisjoint((item.id, item.distribution))}
        found = {item.id: item for item in Lock.of(registry).quirks}
        words = []
        for name in sorted(locked.keys() | found.keys()):
            before, after = locked.get(name), found.get(name)
            if before is None:
                words.append(f"{after} is not in the lock file")
            elif after is None:
                words.append(f"{before} is not loaded")
            elif (before.distribution, before.version) != (after.distribution, after.version):
                words.append(f"{before} is loaded from {after.distribution} {after.version}")
            elif before != after:
                words.append(f"{before} is declared differently (digest {before.digest[:12]}, now {after.digest[:12]})")
        return tuple(words)
