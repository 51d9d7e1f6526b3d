"""What a sweep found, as records that travel as JSON: one row per kind of model, and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from quirks_core.errors import UsageError, words
from quirks_core.facts import Record


class Verdict(StrEnum):
    """What a row says about the installed engine and its quirks."""

    RIGHT = "right"  #: transformers' tokens after both refits, and no tensor differs
    REFUSED = "refused"  #: a quirk refuses the run before anything starts, and says why
    UNFINISHED = "not finished"  #: it took too long, or was killed from outside; the next sweep tries again
    NOT_BUILT = "not built"  #: transformers makes no tiny model of it
    NO_START = "does not start"  #: the engine does not start, with a refit to come or from the checkpoint
    ERROR_FROM_DISK = "error, also from disk"  #: an error after the start; without a refit as well
    OTHER_FROM_DISK = "other model, also from disk"  #: the engine computes something else than transformers without any refit
    REFIT_FAILS = "refit fails"  #: it ends with an error, and the checkpoint from disk is right
    REFIT_WRONG = "refit wrong"  #: tokens or tensors are wrong without an error, and the checkpoint from disk is right


class Stage(StrEnum):
    """How far a run came; a run that ended early failed in this stage."""

    BUILD = "build"
    PLAN = "plan"
    START = "start"
    FIRST = "first refit"
    AUDIT = "audit"
    SECOND = "second refit"
    DONE = "done"


class Tokens(Record):
    """Greedy tokens of the engine beside those of transformers."""

    equal: int  #: how many are the same
    total: int  #: how many there are
    #: largest difference between the logprobs of the engine's tokens and the trainer's of them, in nats; None if one is NaN
    logprobs: float | None = None

    @property
    def right(self) -> bool:
        """All are the same."""
        return self.equal == self.total

    def __str__(self) -> str:
        return f"{self.equal}/{self.total}"


class Run(Record):
    """One engine: how far it came, and what it generated."""

    stage: Stage
    error: str = ""  #: why it ended before it was done
    killed: bool = False  #: it took too long, or something outside ended it
    architecture: str = ""  #: the class that the checkpoint names
    quirks: tuple[str, ...] = ()  #: active in the plan
    refusals: tuple[str, ...] = ()  #: quirks that refuse the run
    first: Tokens | None = None  #: after the first refit; from disk: after the start
    second: Tokens | None = None  #: after a refit of other weights
    differs: tuple[str, ...] | None = None  #: what a refit leaves other than a load of the checkpoint; None: not compared
    audit_error: str = ""  #: why it was not compared
    layer: str = ""  #: from disk: the first layer whose output differs from transformers'; empty if none was found

    @property
    def right(self) -> bool:
        """It ended without an error, and all that was compared is equal."""
        return self.stage is Stage.DONE and all(one.right for one in (self.first, self.second) if one) and not self.differs


class Row(Record):
    """What a sweep found out about one kind of model."""

    kind: str
    run: Run  #: an engine that starts from dummy weights, as planned, and is refitted
    disk: Run | None = None  #: an engine that loads the checkpoint; None if the other one is right, or it is not worth starting
    seconds: float
    date: date
    depends: dict[str, str]  #: what it depends on: versions by package, and a digest of the model's values

    @property
    def verdict(self) -> Verdict:
        """What the row says."""
        run, disk = self.run, self.disk
        if run.right:
            return Verdict.RIGHT
        if run.killed or (disk is not None and disk.killed):
            return Verdict.UNFINISHED
        early = {Stage.BUILD: Verdict.NOT_BUILT, Stage.PLAN: Verdict.REFUSED, Stage.START: Verdict.NO_START}
        if run.stage in early:
            return early[run.stage]
        if disk is not None and not disk.right:
            return Verdict.OTHER_FROM_DISK if disk.stage is Stage.DONE else Verdict.ERROR_FROM_DISK
        return Verdict.REFIT_WRONG if run.stage is Stage.DONE else Verdict.REFIT_FAILS


class Sweep(Record):
    """The rows of a sweep, by kind."""

    rows: tuple[Row, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Sweep:
        """Reads a sweep; an empty one if the file is not there.

        Raises:
            UsageError: It cannot be read.
        """
        try:
            return cls.model_validate_json(file.read_bytes()) if file.exists() else cls()
        except (OSError, ValidationError) as error:
            raise UsageError(f"{file} is no result of a sweep: {words(error)}") from None

    def with_rows(self, rows: Iterable[Row]) -> Sweep:
        """Returns a sweep with more rows; of two of one kind the later one counts."""
        found = {row.kind: row for row in (*self.rows, *rows)}
        return Sweep(rows=tuple(found[kind] for kind in sorted(found)))

    def text(self) -> str:
        """Returns it as JSON that can be compared line by line."""
        return self.model_dump_json(indent=1, exclude_defaults=True) + "\n"
