"""The account of an engine's weights: what each process has of each update, and what is wrong with it, in words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from quirks_core.base.errors import UsageError, nearest
from quirks_core.base.record import Record

#: The account's switch: a mode, and what else is not at its default, as ``warn;unchanged=3``.
LEDGER_VARIABLE = "MODEL_QUIRKS_LEDGER"
#: Ends the name of what a kernel holds in no tensor, and is represented by what it makes of one input.
COMPUTES = " (as it computes)"
#: How weights came: what the engine started with, vLLM's weight transfer (also ours), ``reload_weights``, a bare
#: ``model.load_weights``, a LoRA adapter.
Way = Literal["start", "transfer", "reload", "raw", "lora"]
#: What a verdict is about, for programs.
Kind = Literal[
    "unchanged", "partial", "ranks", "adapter-missing", "adapter-names", "adapter-zero", "adapter-unused", "not-finite",
    "no-update", "behind", "encoded-again", "label",
]  # fmt: skip
Mode = Literal["warn", "stop", "off"]


class LedgerSettings(Record):
    """What the user set for the ledger.

    Attributes:
        mode: ``warn`` logs verdicts, ``stop`` refuses to generate as well, ``off`` keeps no account.
        unchanged: After how many updates in a row a verdict is grave that must not last: new weights that change nothing.
        behind: How many updates the engine may be behind the trainer, where the trainer reports its own.
        whole: Read every byte for the digests, not a sample of large tensors.
    """

    mode: Mode = "warn"
    unchanged: PositiveInt = 2
    behind: NonNegativeInt = 4
    whole: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> LedgerSettings:
        """Reads the variable.

        Raises:
            UsageError: It has a value that it cannot have.
        """
        text = (os.environ if environ is None else environ).get(LEDGER_VARIABLE, "").strip().lower()
        mode, *rest = (part.strip() for part in text.split(";"))
        values = {"mode": mode} if mode else {}
        values |= {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in rest if part)}
        try:
            return cls.model_validate(values)
        except ValidationError:
            near = nearest(mode, get_args(Mode)) if mode not in get_args(Mode) else ""
            raise UsageError(
                f"{LEDGER_VARIABLE}={text!r}: it takes warn, stop or off{near}, then, after semicolons, unchanged=UPDATES, "
                "behind=UPDATES and whole=1"
            ) from None


class Entry(Record):
    """What one process had after one update.

    Attributes:
        number: Counts the updates of the process, its adapters' included, from 1; what the engine started with is 0.
        version: Label of the weights, if the engine was given one for this update.
        way: How they came.
        rank: The process among all of one engine.
        tensors: How many tensors came; 0 if that is unknown.
        bytes: Their size.
        digests: Digest by name of every parameter of the running model; of an adapter's tensors for ``lora``. What a kernel has
            packed away is ``NAME (as it computes)``: a digest of its answer to one input, for this machine alone.
        changed: The names whose digests are not those before the update; for ``lora``, not those of the adapter before.
        forms: Dtype and shape by name of each tensor in `digests` (`worker.refit.weights.digest.form`).
        received: Digest by checkpoint name of what the loaders took last, in this update or before; empty if what it went into
            has changed past them since. What was copied into its place as it came is in `digests` alone.
        came: The names that came with this update, where ``load_weights`` took them.
        not_finite: The names of tensors with NaN or infinite values.
        unannounced: The names of tensors that had changed already when the update began.
        sampled: The digests are of samples (`worker.refit.weights.digest.Digester` with ``whole=False``).
        adapter: The adapter's name, for ``lora``.
        unmatched: The adapter's modules that are no modules of the model.
        is_zero: The adapter adds nothing: in each module A, B or the factor before them is zero.
        is_cast: What came is wider than the dtype that the engine computes in, which may round a small change away.
        seconds: What the entry cost.
    """

    number: int
    version: str = ""
    way: Way
    rank: int
    tensors: int = 0
    bytes: int = 0
    digests: dict[str, str] = Field(default_factory=dict)
    changed: tuple[str, ...] = ()
    forms: dict[str, str] = Field(default_factory=dict)
    received: dict[str, str] = Field(default_factory=dict)
    came: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
    unannounced: tuple[str, ...] = ()
    sampled: bool = True
    adapter: str = ""
    unmatched: tuple[str, ...] = ()
    is_zero: bool = False
    is_cast: bool = False
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """One digest of all: equal for equal weights in one process."""
        text = "\n".join(f"{name} {digest}" for name, digest in sorted(self.digests.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Verdict(Record):
    """What is wrong with the weights, in words.

    Attributes:
        kind: What it is about.
        number: The update after which it was found.
        text: What was seen, and what to look at.
        is_grave: A warning, which ``MODEL_QUIRKS_LEDGER=stop`` acts on; otherwise a note, which may have an innocent reason.
    """

    kind: Kind
    number: int
    text: str
    is_grave: bool = True


class Line(Record):
    """An entry of one process without its digests by tensor, for the file of receipts."""

    number: int
    version: str
    way: Way
    rank: int
    tensors: int
    bytes: int
    held: int
    changed: int
    digest: str
    seconds: float

    @classmethod
    def of(cls, entry: Entry) -> Line:
        """Shortens an entry."""
        same = {name: getattr(entry, name) for name in ("number", "version", "way", "rank", "tensors", "bytes", "seconds")}
        return cls(**same, held=len(entry.digests), changed=len(entry.changed), digest=entry.digest)


class Account(Record):
    """What the core of an engine knows of its processes' weights.

    Attributes:
        pid: The core's process id.
        host: Its machine.
        updates: How many updates there were.
        entries: The last one, of each process that had it.
        lines: The last updates in short, the newest last.
        verdicts: All verdicts, in the order in which they were found.
        problems: Those that hold now.
        refusal: Why the engine does not generate (``MODEL_QUIRKS_LEDGER=stop``, ``refit.finite``); empty if it does.
    """

    pid: int
    host: str = ""
    updates: int = 0
    entries: tuple[Entry, ...] = ()
    lines: tuple[Line, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    problems: tuple[Verdict, ...] = ()
    refusal: str = ""
