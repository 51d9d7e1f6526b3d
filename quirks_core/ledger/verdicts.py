"""Judges the entries of an engine's ledgers: did the policy arrive? Pure; the engine's core calls it after each update."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

from quirks_core.base.text import listed
from quirks_core.ledger.account import Entry, Kind, LedgerSettings, Verdict

#: A layer in the name of a tensor, as in ``model.layers.3.mlp``: its stack, and its number there.
_LAYER = re.compile(r"^(?:(.*?)\.)?(\d+)\.")
#: How the digest of a tensor begins whose words add up to zero: nothing can be learned from it.
_ZERO = "0" * 16
#: After how many updates in a row weights that never changed are no warm-up any more. A gradient scaler may skip 16 steps:
#: PyTorch's begins at 65 536 and halves at each (``torch.amp.GradScaler``).
_WARM_UP = 17
#: Labels of which it is known what came with them.
_LABELS = 4
#: After how many requests of the base model alone an engine that takes adapters has a note.
_BASE_REQUESTS = 1024


class Judge:
    """Judges update after update of one engine.

    Attributes:
        problems: What is wrong now, by kind.
        names: All tensors that the engine runs on.
    """

    def __init__(self, settings: LedgerSettings, *, ranks: int = 1, has_lora: bool = False, is_quantized: bool = False) -> None:
        """Begins with an engine that had no update.

        Args:
            settings: When a verdict is grave.
            ranks: How many processes have an entry for each update.
            has_lora: The engine takes adapters.
            is_quantized: Its weights are rounded again after they came.
        """
        self.problems: dict[str, Verdict] = {}
        self.names: set[str] = set()
        self._settings = settings
        self._ranks = ranks
        self._has_lora = has_lora
        self._is_quantized = is_quantized
        self._patience = max(settings.unchanged, _WARM_UP)
        self._updates = 0
        self._trainer = self._synced = 0
        self._adapters = 0
        self._reported: set[tuple[str, bool]] = set()
        self._ever: set[str] = set()
        self._has_moved = False
        self._still = self._lost = 0
        self._zeros: set[str] = set()
        self._base_requests = self._unused = 0
        self._is_used = False
        self._window: deque[tuple[set[str], set[str]]] = deque(maxlen=settings.unchanged)  # names: changed, came
        self._alike: set[str] = set()
        self._received: Mapping[str, str] = {}
        self._version = ""
        self._labelled: dict[str, Mapping[str, str]] = {}  # what came, by label, the newest last

    def add(self, rows: Sequence[Entry]) -> list[Verdict]:
        """Judges one update by its entries, one of each process that had it.

        Returns:
            The verdicts that were not reported yet. A problem that is over can be reported again.
        """
        if rows[0].way == "start":
            self.names |= {name for row in rows for name in row.digests}
            return []
        self._synced = self._trainer
        found = [*(self._of_adapter(rows) if rows[0].way == "lora" else self._of_model(rows)), *self._of_all(rows)]
        kinds = {"adapter-names", "adapter-zero", "adapter-unused"} if rows[0].way == "lora" else {"partial", "no-update"}
        kinds |= {"unchanged", "ranks", "not-finite", "adapter-missing", "label"}
        return self._unreported(found, kinds)

    def trainer_at(self, updates: int) -> list[Verdict]:
        """Takes the number of updates that the trainer has made, and compares it with that at the last update of the engine.

        A trainer may send its weights after several of its own updates. Returns as `add` does.
        """
        self._trainer = updates
        late = updates - self._synced
        if late <= self._settings.behind:
            return self._unreported([], {"behind"})
        text = (
            f"the engine generates with weights that are {late} updates old: the trainer has made {updates}, and its weights "
            f"came last after {self._synced}; look at what keeps it from sending them"
        )
        return self._unreported([Verdict(kind="behind", number=self._updates, text=text)], {"behind"})

    def served(self, with_adapter: int, base: int) -> list[Verdict]:
        """Takes how many requests of a rollout came with an adapter, and how many for the base model. Returns as `add` does."""
        self._is_used |= with_adapter > 0
        self._base_requests += base
        if self._adapters or self._updates or self._is_used or self._base_requests < _BASE_REQUESTS:
            return []
        text = (
            f"LoRA is on, and {self._base_requests} requests got the base model: nothing was ever sent; send the adapter "
            "(add_lora), and name it in each request (lora_request, or model over HTTP)"
        )
        return self._unreported([Verdict(kind="adapter-missing", number=0, text=text, is_grave=False)], {"adapter-missing"})

    def encoded_again(self, prompts: int, continued: int) -> list[Verdict]:
        """Takes how many prompts have an answer's text in other ids, of those that continue one. Returns as `add` does."""
        text = (
            f"{prompts} of {continued} prompts that continue an answer of this engine have its text in other token ids: the "
            "client sent text, which was encoded again, and a trainer that learns these ids learns what no policy sampled: "
            "send the sampled ids in the next prompt"
        )
        verdict = Verdict(kind="encoded-again", number=self._updates, text=text, is_grave=False)
        return self._unreported([verdict], {"encoded-again"})

    def _unreported(self, found: Sequence[Verdict], kinds: Collection[str]) -> list[Verdict]:
        self.problems = {kind: verdict for kind, verdict in self.problems.items() if kind not in kinds}
        self.problems |= {verdict.kind: verdict for verdict in found}
        now = {(verdict.kind, verdict.is_grave) for verdict in found}
        new = [verdict for verdict in found if (verdict.kind, verdict.is_grave) not in self._reported]
        self._reported = {one for one in self._reported if one[0] not in kinds or not one[1]} | now  # a note comes once
        return new

    # ---- the model's updates

    def _of_model(self, rows: Sequence[Entry]) -> Iterator[Verdict]:
        self._updates += 1
        number = self._updates
        changed = {name for row in rows for name in row.changed}
        received = {name: digest for row in rows for name, digest in row.received.items()}
        version = rows[0].version
        is_again = bool(version) and version == self._version  # an evaluation, or one more iteration on the same policy
        self.names |= {name for row in rows for name in row.digests}
        self._ever |= changed
        if changed:
            self._still = self._lost = 0
            self._has_moved |= number > 1
            self._window.append((changed, {name for row in rows for name in row.came}))
        elif number > 1 and not is_again:  # the first update may bring what the engine started with
            self._still += 1
            yield from self._unchanged(rows[0], number, received)
        yield from self._label(version, number, received)
        self._received, self._version = received, version
        yield from self._partial(number)

    def _unchanged(self, row: Entry, number: int, received: Mapping[str, str]) -> Iterator[Verdict]:
        came_other = any(self._received.get(name, digest) != digest for name, digest in received.items())
        self._lost += came_other
        never = sorted(self.names - self._ever)
        which = "update" if self._still == 1 else f"the last {self._still} updates up to"
        text = f"{which} {number} ({row.way}) changed 0 of {len(self.names)} tensors"
        if self._ever:
            text += f"; earlier updates changed {len(self.names) - len(never)} of them"
            text += f", and never {listed(never)}" if never else ""
        kind: Kind = "unchanged"
        is_grave = not self._has_moved and self._still >= self._patience
        if came_other and (self._is_quantized or row.is_cast):
            text += ": what came differs from the update before, and rounds to the same values"
            is_grave = False
        elif came_other:
            text += ": what came differs from the update before, and does not reach what the engine computes with"
            is_grave = self._lost >= self._settings.unchanged
        elif self._has_lora and not self._adapters:
            kind = "adapter-missing"
            text = (
                f"LoRA is on, no adapter was ever loaded, and {text}: requests get the base model; send the adapter "
                "(add_lora), or the weights with the adapter merged"
            )
            is_grave = not self._has_moved and self._still >= self._settings.unchanged
        else:
            text += (
                ": the engine was sent what it has: a base whose adapter is not merged, a stale copy, or a policy that was not "
                "trained (learning rate 0) or whose step was skipped by the scaler (float16)"
            )
        yield Verdict(kind=kind, number=number, text=text, is_grave=is_grave)

    def _label(self, version: str, number: int, received: Mapping[str, str]) -> Iterator[Verdict]:
        """Compares what came with what had the same label before, where others came in between."""
        before = self._labelled.pop(version, {})
        if version:
            self._labelled = {**dict(list(self._labelled.items())[1 - _LABELS :]), version: received}
        other = sorted(name for name, digest in received.items() if before.get(name, digest) != digest)
        if other and version != self._version:
            text = (
                f"update {number} has the label {version!r} of an earlier one, and {len(other)} of {len(received)} tensors are "
                f"others: {listed(other)}; a base drifts if adapters are merged into it and taken out again in bfloat16 or "
                "float16: merge in float32 or restore a copy of it; or two states have one label"
            )
            yield Verdict(kind="label", number=number, text=text, is_grave=False)

    def _partial(self, number: int) -> Iterator[Verdict]:
        """Looks at stacks of layers of which some change and some never do; a frozen tower is a stack of its own."""
        if len(self._window) < self._settings.unchanged:
            return
        names, received = (set.union(*sets) for sets in zip(*self._window, strict=True))
        changed = {layer for name in names if (layer := _layer(name)) is not None}
        layers = {layer for name in self.names if (layer := _layer(name)) is not None}
        came = {(_word(layer), layer[1]) for name in received if (layer := _layer(name)) is not None}
        stacks = {stack for stack, _ in changed}
        never = sorted(layer for layer in layers - changed if layer[0] in stacks or not changed)
        if not never:
            return
        absent = [layer for layer in never if received and (_word(layer), layer[1]) not in came]
        which = absent or never
        reason = (
            "no update brought them; a partial model was loaded (one chunk, or one rank's part)"
            if absent
            else "they came with the values that the engine has: frozen layers, or a trainer that sends old values for them"
        )
        yield Verdict(
            kind="partial",
            number=number,
            text=f"only some layers change: the last {len(self._window)} updates up to {number} changed {len(changed)} of "
            f"{len(layers)} layers, and never {listed([f'{stack}.{index}'.lstrip('.') for stack, index in which])}: {reason}",
            is_grave=bool(absent),
        )

    # ---- the model's and an adapter's

    def _of_all(self, rows: Sequence[Entry]) -> Iterator[Verdict]:
        number = rows[0].number if rows[0].way == "lora" else self._updates
        yield from self._ranks_disagree(rows, number)
        if bad := sorted({name for row in rows for name in row.not_finite}):
            text = f"update {number} left NaN or infinite values in {_count(bad)}: {listed(bad)}; correct the trainer's model"
            yield Verdict(kind="not-finite", number=number, text=text)
        if late := sorted({name for row in rows for name in row.unannounced}):
            text = (
                f"{_count(late)} changed before update {number} began, without an update that vLLM knows of: {listed(late)}; "
                "something writes into the running model past load_weights"
            )
            yield Verdict(kind="no-update", number=number, text=text)

    def _ranks_disagree(self, rows: Sequence[Entry], number: int) -> Iterator[Verdict]:
        """Compares the processes: each has a part of its own of the split tensors, and the same of the others.

        Which are the same is learned: a tensor that an update changed to one value everywhere.
        """
        texts = []
        if len(rows) < self._ranks:
            had = listed([str(row.rank) for row in rows])
            texts.append(f"update {number} came on {len(rows)} of {self._ranks} ranks ({had})")
        common = set.intersection(*(set(row.digests) for row in rows))
        counts = {row.rank: len(common & set(row.changed)) for row in rows}
        if len(rows) > 1 and not min(counts.values()) and max(counts.values()) > 1:
            share = ", ".join(f"{count} of {len(common)} on rank {rank}" for rank, count in counts.items())
            texts.append(f"update {number} changed {share} tensors")
        if len(rows) == self._ranks > 1:
            same = {name for name in common if len({row.digests[name] for row in rows}) == 1}
            if wrong := sorted(self._alike & common - same):
                texts.append(f"{_count(wrong)} that all ranks held alike are different on them now: {listed(wrong)}")
            self._alike &= same | (self.names - common)
            changed = set.intersection(*(set(row.changed) for row in rows))
            self._alike |= {name for name in same & changed if not rows[0].digests[name].startswith(_ZERO)}
        if texts:
            text = f"ranks disagree: {'; '.join(texts)}; a rank was left out of the update, or got another one"
            yield Verdict(kind="ranks", number=number, text=text)

    # ---- adapters

    def _of_adapter(self, rows: Sequence[Entry]) -> Iterator[Verdict]:
        self._adapters += 1
        row, number = rows[0], rows[0].number
        modules = {name.rpartition(".")[0] for name in row.digests}
        # Each of several pipeline stages has other modules.
        unmatched = sorted(set.intersection(*(set(one.unmatched) for one in rows)))
        changed = {name for one in rows for name in one.changed}
        if unmatched:
            nothing = len(unmatched) == len(modules)
            yield Verdict(
                kind="adapter-names",
                number=number,
                text=f"adapter {row.adapter!r}: {len(unmatched)} of its {len(modules)} modules are no modules of this model: "
                f"requests get the base model{'' if nothing else ' there'}; rename the tensors of {listed(unmatched)}",
                is_grave=nothing,
            )
        self._zeros = self._zeros | {row.digest} if all(one.is_zero for one in rows) else set()
        if len(self._zeros) > self._settings.unchanged:  # one that was not trained yet is one of them, or one of two policies'
            text = (
                f"adapter {row.adapter!r} adds nothing: in each of the last {len(self._zeros)} adapters A, B or lora_alpha is "
                "zero: requests get the base model; send it after the optimiser's step, with the trainer's lora_alpha"
            )
            yield Verdict(kind="adapter-zero", number=number, text=text)
        self._unused = self._unused + 1 if self._base_requests and not self._is_used else 0
        self._base_requests, self._is_used = 0, False
        if self._unused > self._settings.unchanged:
            text = (
                f"no request named one of the last {self._unused} adapters: they get the base model; name the adapter in each "
                "request (lora_request, or model over HTTP)"
            )
            yield Verdict(kind="adapter-unused", number=number, text=text)
        self._still = 0 if changed else self._still + 1
        self._has_moved |= bool(changed) and self._adapters > 1
        if self._still:
            yield Verdict(
                kind="unchanged",
                number=number,
                text=f"adapter {row.adapter!r} came {self._still + 1} times with the same {len(row.digests)} tensors: the "
                "trainer sends a stale copy, or was not trained (learning rate 0)",
                is_grave=not self._has_moved and self._still >= self._patience,
            )


@cache  # the names of one engine, at each update
def _layer(name: str) -> tuple[str, int] | None:
    match = _LAYER.match(name)
    return (match[1] or "", int(match[2])) if match else None


def _word(layer: tuple[str, int]) -> str:
    """The last word of a stack's name: ``layers``, in the engine's names as in a checkpoint's."""
    return layer[0].rpartition(".")[2]


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} tensor{'s' * (len(names) != 1)}"
