"""Holds what an engine has against what its trainer has: the share that arrived, and the names of what did not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quirks_core.base.errors import UsageError
from quirks_core.base.text import listed
from quirks_core.ledger.account import COMPUTES, LEDGER_VARIABLE, Entry
from worker.refit.weights.expected import Expected, common, engine_name

#: How many of the trainer's states an engine's weights are looked for in, beyond those that it may have.
_OLDER = 4


@dataclass(frozen=True, slots=True)
class Arrival:
    """What an engine has of its trainer's model.

    Attributes:
        number: The engine's last update.
        arrived: Common names of the engine's tensors that are the trainer's, byte by byte.
        missing: Names of those that are not: an older value, or another one.
        incomparable: Names of those that the engine lays out or computes in its own way, and that give no sign of a fault.
        changed_share: Which share of its tensors changed since the comparison before; None at the first.
        norms: By common name the L2 norm of the trainer's update since then, estimated from at most 4096 values of each.
        age: How many of the trainer's states ago the engine's weights are from; None if they are of none that is known.
        verdict: What is wrong, in words; empty if nothing is.
    """

    number: int
    arrived: tuple[str, ...]
    missing: tuple[str, ...]
    incomparable: tuple[str, ...]
    changed_share: float | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    age: int | None = 0
    verdict: str = ""

    @property
    def share(self) -> float:
        """Which share of the comparable tensors arrived; NaN if none is comparable."""
        count = len(self.arrived) + len(self.missing)
        return len(self.arrived) / count if count else math.nan

    @property
    def update_norm(self) -> float:
        """The L2 norm of the trainer's whole update."""
        return math.hypot(*self.norms.values())

    def __str__(self) -> str:
        counts = f"{len(self.arrived)} tensors are the trainer's, {len(self.missing)} are not"
        return f"update {self.number}: {counts}, {len(self.incomparable)} cannot be compared"


class _Seen(NamedTuple):
    """The digest of one engine tensor at the last comparison, and those that were right when it was not missing."""

    held: str
    right: frozenset[str]


class Arrivals:
    """Compares one engine with its trainer, update after update.

    A tensor that was the trainer's once is comparable, and has to be the trainer's again. One that never was (a kernel packs
    it, a loader computes it) has to change when the trainer's does.
    """

    def __init__(self, *, behind: int = 0) -> None:
        """Begins with an engine that is not known.

        Args:
            behind: How many of the trainer's states the engine may be behind, where several optimiser steps share a rollout.
        """
        self._behind = behind
        self._sent: deque[Expected] = deque(maxlen=behind + 1 + _OLDER)
        self._comparable: set[tuple[str, str]] = set()
        self._seen: dict[tuple[int, str], _Seen] = {}
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
        tried = [self._sorted(entries, one) for one in self._sent]
        best = min(range(min(self._behind + 1, len(tried))), key=lambda age: (len(tried[age].missing), age))
        found = tried[best]
        number = max((entry.number for entry in entries), default=0)
        updates = None if self._number is None else number - self._number
        share = self._note(entries, self._sent[best], found.missing)
        age = best if not found.missing else next((one for one, other in enumerate(tried) if not other.missing), None)
        self._comparable |= found.comparable
        self._number = number
        arrived = found.arrived - found.missing - found.incomparable
        return Arrival(
            number=number,
            arrived=tuple(sorted(arrived)),
            missing=tuple(sorted(found.missing)),
            incomparable=tuple(sorted(found.incomparable - found.missing)),
            changed_share=share,
            norms=sent.norms(self._sent[1]) if len(self._sent) > 1 else {},
            age=age,
            verdict=_verdict(found, share, age, updates) if found.missing else "",
        )

    def _sorted(self, entries: Sequence[Entry], expected: Expected) -> _Sorted:
        """Sorts the engine's tensors: what is the trainer's, what is not, and what cannot be compared."""
        found = _Sorted()
        wrong: set[str] = set()
        for entry in entries:
            for name, digest in entry.received.items():
                if digest in expected.digests.get(common(name), ()):
                    found.comparable.add(("received", common(name)))
                elif ("received", common(name)) in self._comparable:
                    wrong.add(engine_name(common(name)))
        for entry in entries:
            for name, digest in entry.digests.items():
                key = _key(name, expected)
                right = expected.digests.get(key)
                if right is None:
                    found.incomparable.add(key)
                elif digest in right:
                    found.arrived.add(key)
                    found.comparable.add(("held", name))
                elif ("held", name) in self._comparable or key in wrong or self._is_still(entry.rank, name, digest, right):
                    found.missing.add(key)
                else:
                    found.incomparable.add(key)
        return found

    def _is_still(self, rank: int, name: str, digest: str, right: frozenset[str]) -> bool:
        """Whether the engine's tensor is as it was, and the trainer's is not."""
        seen = self._seen.get((rank, name))
        return seen is not None and seen.held == digest and right.isdisjoint(seen.right)

    def _note(self, entries: Sequence[Entry], expected: Expected, missing: Collection[str]) -> float | None:
        """Remembers what the engine has; returns which share of it changed, None at the first comparison."""
        before, self._seen, changed = self._seen, {}, 0
        for entry in entries:
            for name, digest in entry.digests.items():
                key, last = _key(name, expected), before.get((entry.rank, name))
                changed += last is None or last.held != digest
                right = last.right if last is not None and key in missing else expected.digests.get(key, frozenset())
                self._seen[entry.rank, name] = _Seen(digest, right)
        return changed / len(self._seen) if before and self._seen else None


@dataclass(slots=True)
class _Sorted:
    """Common names of an engine's tensors beside one state of the trainer; `comparable` has what each side calls them."""

    arrived: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    incomparable: set[str] = field(default_factory=set)
    comparable: set[tuple[str, str]] = field(default_factory=set)


def _key(name: str, expected: Expected) -> str:
    """Returns the common name of an engine's tensor; a packed layer's is that of its weight."""
    key = common(name.removesuffix(COMPUTES))
    return f"{key}.weight" if name.endswith(COMPUTES) and f"{key}.weight" in expected.digests else key


def _verdict(found: _Sorted, share: float | None, age: int | None, updates: int | None) -> str:
    count = f"{len(found.missing)} of {len(found.missing | found.arrived)} comparable tensors"
    names = listed(sorted(found.missing))
    if updates == 0:
        reason = "no update came since the comparison before, and the trainer's weights changed: nothing sends them"
    elif share == 0:
        reason = (
            "the updates brought what the engine had, and the trainer's weights changed: a base whose adapter is not merged, "
            "or a stale copy"
        )
    elif age:
        steps = f"{age} step{'s' * (age > 1)}"
        reason = f"the engine has the trainer's weights of {steps} ago: the sync comes too early, or sends a stale copy"
    else:
        reason = "what came is not the trainer's model: another copy, or an update that was cut short"
    return f"{count} did not arrive: {names}; {reason}"
