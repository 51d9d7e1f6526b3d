"""The account of an engine's weights: what each process has of each update, and what is wrong with it, in words."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field

from quirks_core.base.record import Record

#: How weights came: what the engine started with, vLLM's weight transfer (also ours), ``reload_weights``, a bare
#: ``model.load_weights``, a LoRA adapter.
Way = Literal["start", "transfer", "reload", "raw", "lora"]
#: What a verdict is about, for programs.
Kind = Literal[
    "unchanged", "partial", "ranks", "adapter-missing", "adapter-names", "adapter-zero", "not-finite", "no-update", "behind"
]


class Entry(Record):
    """What one process had after one update.

    Attributes:
        number: Counts the updates of the process, its adapters' included, from 1; what the engine started with is 0.
        version: Label of the weights, if the engine was given one.
        way: How they came.
        rank: The process among all of one engine.
        tensors: How many tensors came; 0 if that is unknown.
        bytes: Their size.
        digests: Digest by name of every parameter and buffer of the running model; of an adapter's tensors for ``lora``. What
            a kernel has packed away is ``NAME (as it computes)``, a digest of its answer to one input, for this machine alone.
        changed: The names whose digests are not those of the last entry of the same way or model.
        received: Digest by checkpoint name of what came, where the ledger sees it pass (``reload`` and ``raw``).
        not_finite: The names of tensors with NaN or infinite values.
        sampled: The digests are of samples (`worker.refit.weights.digest.digests` with ``whole=False``).
        adapter: The adapter's name, for ``lora``.
        unmatched: The adapter's modules that no module of the model takes.
        is_zero: The adapter adds nothing: all of its B matrices are zero.
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
    received: dict[str, str] = Field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
    sampled: bool = True
    adapter: str = ""
    unmatched: tuple[str, ...] = ()
    is_zero: bool = False
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
        text: One sentence or two: what was seen, and what to look at.
        is_grave: A warning, which ``MODEL_QUIRKS_LEDGER=stop`` acts on; otherwise a note, which may have an innocent reason.
    """

    kind: Kind
    number: int
    text: str
    is_grave: bool = True
