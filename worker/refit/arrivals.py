"""Holds what an engine has against what its trainer has, update after update: which tensors are equal, and what did not arrive.

A tensor is equal if something that must be equal is: its bytes, or what its loader took for it. What a kernel packs, quantises
or lays out is known by the latter alone. ``quirks weights`` compares by this, too.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from quirks_core.base.errors import UsageError
from quirks_core.base.text import listed
from quirks_core.ledger.account import COMPUTES, LEDGER_VARIABLE, Entry
from worker.refit.weights.expected import Expected, common, engine_name, taken_name

#: How many of the trainer's states an engine's weights are looked for in, beyond those that it may have.
_OLDER = 4
#: All that can be compared is the trainer's and nothing is left (``arrived``), something is not (``missing``), or some of it
#: cannot be compared (``undecided``).
Status = Literal["arrived", "missing", "undecided"]
#: A tensor that an engine may have twice, and a checkpoint mostly once.
_TIED = {"lm_head": "embed_tokens"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tensors of an engine, by common name.

    Attributes:
        arrived: Those of which the bytes, or what their loader took, are the trainer's.
        missing: Those of which they are not: an older value, or another one.
        incomparable: Those that the engine lays out or computes in its own way, and of which no loader's input is known.
        unknown: Those of them for which the trainer has nothing.
        same_bytes: The rank and name of each tensor whose bytes are the trainer's.
    """

    arrived: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    incomparable: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    same_bytes: frozenset[tuple[int, str]] = frozenset()

    @property
    def status(self) -> Status:
        """Whether the policy arrived; what cannot be compared did not."""
        if self.missing:
            return "missing"
        return "arrived" if self.arrived and not self.incomparable else "undecided"

    @property
    def count(self) -> int:
        """How many tensors there are."""
        return len(self.arrived) + len(self.missing) + len(self.incomparable)

    @property
    def share(self) -> float:
        """Which share of all tensors arrived; NaN if there is none."""
        return len(self.arrived) / self.count if self.count else math.nan

    def __str__(self) -> str:
        text = f"{len(self.arrived)} of {self.count} tensors are the trainer's"
        text += f", {len(self.missing)} are not: {listed(self.missing)}" if self.missing else ""
        if rest := self.incomparable:
            text += f", {len(rest)} cannot be compared (packed, quantised or computed by the engine): {listed(rest)}"
        return text


def compare(entries: Sequence[Entry], expected: Expected, same_bytes: Collection[tuple[int, str]] = frozenset()) -> Comparison:
    """Compares what the processes of an engine have with a trainer's model or a checkpoint.

    Args:
        entries: One of each process.
        expected: The model.
        same_bytes: Those tensors whose bytes were the trainer's once: they have to be so again, whatever their loader took.
    """
    groups = {name: set[str]() for name in ("equal", "different", "incomparable", "unknown")}
    same: set[tuple[int, str]] = set()
    by_layer: dict[str, list[str]] = defaultdict(list)  # what the trainer sends for a tensor, and for all tensors of a layer
    for name in expected.sent:
        tensor = engine_name(name)
        by_layer[tensor].append(name)
        by_layer[tensor.rpartition(".")[0]].append(name)
    took = [{taken_name(name): digest for name, digest in entry.received.items()} for entry in entries]
    rights = [{name for name, digests in expected.sent.items() if taken.get(name) in digests} for taken in took]
    found = set[str]().union(*rights)
    for entry, taken, right in zip(entries, took, rights, strict=True):
        for name, digest in entry.digests.items():
            key, parts = _key(name, by_layer)
            own = {part for part in parts if part in taken or ".experts." not in part}  # other ranks have other experts
            if digest in expected.digests.get(key, ()):
                groups["equal"].add(key)
                same.add((entry.rank, name))
                found.update(parts)
            elif any(part in taken and part not in right for part in parts):
                groups["different"].add(key)
            elif own and right.issuperset(own) and found.issuperset(parts):
                groups[_by_bytes(entry, name, key, expected, same_bytes)].add(key)
            elif _must_agree(entry, name, key, expected) or (entry.rank, name) in same_bytes:
                groups["different"].add(key)
            else:
                groups["incomparable" if parts else "unknown"].add(key)
    if found.issuperset(expected.sent):  # the rest is the engine's own
        groups["unknown"].clear()
    different, rest = groups["different"], groups["incomparable"] | groups["unknown"]
    return Comparison(
        arrived=tuple(sorted(groups["equal"] - different - rest)),
        missing=tuple(sorted(different)),
        incomparable=tuple(sorted(rest - different)),
        unknown=tuple(sorted(groups["unknown"])),
        same_bytes=frozenset(same),
    )


def origins(names: Collection[str], entries: Sequence[Entry], expected: Expected) -> Iterator[str]:
    """Yields what came for some tensors, by their common names, that are another one's of the trainer, in words."""
    owners = {digest: name for name, digests in expected.sent.items() for digest in digests if digest.strip("0")}
    owners |= {digest: name for name, digests in expected.digests.items() for digest in digests if digest.strip("0")}
    for entry in entries:
        came = [(taken_name(name), digest) for name, digest in entry.received.items()]
        came += [(_key(name, {})[0], digest) for name, digest in entry.digests.items()]
        for name, digest in came:
            if engine_name(name) in names and (owner := owners.get(digest, name)) != name:
                yield f"{name} has the trainer's {owner}"


def _key(name: str, by_layer: Mapping[str, list[str]]) -> tuple[str, Sequence[str]]:
    """Returns the common name of an engine's tensor, a packed layer's being that of its weight, and what is sent for it."""
    key = common(name.removesuffix(COMPUTES)) + ".weight" * name.endswith(COMPUTES)
    layer, _, word = key.rpartition(".")
    if layer not in by_layer and (tied := _TIED.get(layer.rpartition(".")[2])) in by_layer:
        key, layer = f"{tied}.{word}", str(tied)
    return key, by_layer.get(key, by_layer.get(layer, ()))


def _must_agree(entry: Entry, name: str, key: str, expected: Expected) -> bool:
    """Returns whether a tensor's bytes must be the trainer's; a ledger's entry may lack its form."""
    forms = expected.forms.get(key, ())
    return not name.endswith(COMPUTES) and bool(forms) and entry.forms.get(name, next(iter(forms))) in forms


def _by_bytes(entry: Entry, name: str, key: str, expected: Expected, same_bytes: Collection[tuple[int, str]]) -> str:
    """Returns what follows for a tensor with other bytes than the trainer's, though its loader took the trainer's.

    A loader that computes, and one that passes over what it does not know, look alike here.
    """
    if not _must_agree(entry, name, key, expected):
        return "equal"
    return "different" if (entry.rank, name) in same_bytes else "incomparable"


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
