"""Holds what an engine has against what its trainer has, update after update: the share that arrived, and what did not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from quirks_core.base.errors import UsageError
from quirks_core.base.text import listed
from quirks_core.ledger.account import LEDGER_VARIABLE, Entry
from worker.refit.weights.comparison import Comparison, compare, origins
from worker.refit.weights.expected import Expected

#: How many of the trainer's states an engine's weights are looked for in, beyond those that it may have.
_OLDER = 4


@dataclass(frozen=True, slots=True)
class Arrival(Comparison):
    """What an engine has of its trainer's model: its tensors beside the trainer's, and what happened since the last look.

    Attributes:
        number: The engine's last update.
        changed_share: Which share of the engine's tensors changed since the comparison before; at the first, with its update.
            None if there was none.
        norms: By common name the L2 norm of the trainer's update since then, estimated from at most 4096 values of each.
        age: How many of the trainer's states ago the engine's weights are from; None if they are of none that is known.
        verdict: What is wrong, in words; empty if nothing is.
    """

    number: int = 0
    changed_share: float | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    age: int | None = 0
    verdict: str = ""

    @property
    def update_norm(self) -> float:
        """The L2 norm of the trainer's whole update."""
        return math.hypot(*self.norms.values())

    def __str__(self) -> str:
        return f"update {self.number} {self.status}: {Comparison.__str__(self)}"


class Arrivals:
    """Compares one engine with its trainer, update after update.

    Args:
        behind: How many of the trainer's states the engine may be behind, where several optimiser steps share a rollout.
    """

    def __init__(self, *, behind: int = 0) -> None:
        self._behind = behind
        self._sent: deque[Expected] = deque(maxlen=behind + 1 + _OLDER)
        self._same_bytes: frozenset[tuple[int, str]] = frozenset()
        self._held: dict[tuple[int, str], str] = {}
        self._number: int | None = None

    def compare(self, entries: Sequence[Entry], sent: Expected) -> Arrival:
        """Compares what an engine runs on now with the trainer's model.

        Args:
            entries: One of each process: of `worker.last_refit`, or of `worker.refit.engine.ledger.look`.
            sent: `worker.refit.digest` of the model that was sent last, or should have been.

        Raises:
            UsageError: The digests are of samples on one side and of every byte on the other.
        """
        if any(entry.sampled == sent.whole for entry in entries):
            raise UsageError(
                "the ledger's digests and the trainer's are not alike: call digest(model, whole=True) where the engine has "
                f"{LEDGER_VARIABLE}=warn;whole=1, and only there"
            )
        self._sent.appendleft(sent)
        tried = [compare(entries, one, self._same_bytes) for one in self._sent]
        best = min(range(min(self._behind + 1, len(tried))), key=lambda age: (len(tried[age].missing), age))
        found = tried[best]
        number = max((entry.number for entry in entries), default=0)
        has_update = number > (self._number or 0)
        share = self._changed(entries)
        age = best if not found.missing else next((one for one, other in enumerate(tried) if not other.missing), None)
        verdict = _verdict(found, entries, self._sent[best], share, age, has_update=has_update) if found.missing else ""
        self._same_bytes |= found.same_bytes
        self._number = number
        norms = sent.norms(self._sent[1]) if len(self._sent) > 1 else {}
        compared = {one.name: getattr(found, one.name) for one in fields(found)}
        return Arrival(**compared, number=number, changed_share=share, norms=norms, age=age, verdict=verdict)

    def _changed(self, entries: Sequence[Entry]) -> float | None:
        """Returns which share of the engine's tensors is not as at the comparison before, or before its first update."""
        before = self._held
        self._held = {(entry.rank, name): digest for entry in entries for name, digest in entry.digests.items()}
        if before:
            changed = sum(before.get(key) != digest for key, digest in self._held.items())
        elif any(entry.number for entry in entries):
            changed = sum(len(entry.changed) for entry in entries)
        else:
            return None
        return changed / len(self._held) if self._held else None


def _verdict(
    found: Comparison, entries: Sequence[Entry], sent: Expected, share: float | None, age: int | None, *, has_update: bool
) -> str:
    count = f"{len(found.missing)} of {found.count} tensors"
    since = "yet" if share is None else "since the comparison before"
    if not has_update and share:
        reason = f"no update came {since}, and they changed: something writes past the engine's loaders"
    elif not has_update:
        reason = f"no update came {since}, and the trainer's weights changed: nothing sends them"
    elif share == 0:
        reason = (
            "the updates brought what the engine had, and the trainer's weights changed: a base whose adapter is not merged, "
            "or a stale copy"
        )
    elif age:
        steps = f"{age} step{'s' * (age > 1)}"
        reason = f"the engine has the trainer's weights of {steps} ago: the sync comes too early, or sends a stale copy"
    elif others := sorted(set(origins(found.missing, entries, sent))):
        reason = f"they have other names, or another order, than the trainer's: {listed(others, 4)}"
    else:
        reason = "what came is not the trainer's model: another copy, another layout, or an update that was cut short"
    return f"{count} did not arrive: {listed(found.missing)}; {reason}"
