"""Compares what two engines made of the same prompts and seeds: tokens, logprobs, effective settings. Pure.

The first dump is the reference (the rollout, in the words of `worker.parity.metrics`), the second one the candidate (the
trainer), so ``delta`` is A - B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from quirks_core.diff import Change
from quirks_core.errors import UsageError, shown
from worker.parity import causes
from worker.parity.dump import Dump
from worker.parity.metrics import Decode, measured
from worker.parity.records import Bin, Coverage, Histogram, ParityRecord, Sample, Scoring, Verdict, WorstToken
from worker.parity.thresholds import DEFAULT_PROFILE, Threshold, chosen_thresholds, judge

#: Version of the comparisons' format.
COMPARISON_FORMAT = 1
Kind = Literal["greedy", "sampled", "teacher-forced"]
#: Gives the quirks that set a slot.
Cover = Callable[[str], tuple[Coverage, ...]]

_GENERATED: tuple[Literal["greedy", "sampled"], ...] = ("greedy", "sampled")
_NOTHING = object()


class Side(ParityRecord):
    """One of the two engines.

    Attributes:
        date: When its dump was made.
        model: Name of the model there.
        platform: Its platform.
        versions: Versions by package.
        plan: Digest of its plan.
    """

    date: str
    model: str
    platform: str
    versions: dict[str, str]
    plan: str


class Compared(ParityRecord):
    """The rows of one kind.

    Attributes:
        kind: ``greedy`` and ``sampled``: what both engines made, up to the first token that differs; both values there are
            those that the engines reported. ``teacher-forced``: all of A's tokens, scored by both engines by prefill.
        rows: Rows that were compared.
        identical: Rows with the same tokens on both sides.
        diverged: Per row the position of the first token that differs, from 0; None of identical rows.
        tokens: Tokens of A's rows.
        equal_tokens: Those before the first difference.
        metrics: Values by the names of `worker.parity.metrics.METRICS`, over the equal tokens.
        verdicts: One per threshold.
        by_position: By position among the generated tokens.
        histogram: Tokens by log ratio.
        worst: The tokens with the largest differences.
    """

    kind: Kind
    rows: int
    identical: int
    diverged: tuple[int | None, ...] = ()
    tokens: int
    equal_tokens: int
    metrics: dict[str, float]
    verdicts: tuple[Verdict, ...] = ()
    by_position: tuple[Bin, ...] = ()
    histogram: Histogram | None = None
    worst: tuple[WorstToken, ...] = ()

    @property
    def level(self) -> Literal["ok", "warn", "fail"]:
        """The worst of its verdicts."""
        levels = {verdict.level for verdict in self.verdicts}
        return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"

    @property
    def share(self) -> float:
        """Share of A's tokens that come before the first difference."""
        return self.equal_tokens / self.tokens if self.tokens else 1.0


class Cause(ParityRecord):
    """A setting that differs and is known to move tokens or logprobs.

    Attributes:
        name: The engine's name for it.
        a: A's value; None also where it has no such setting.
        b: B's value; likewise.
        concern: What it changes: what a logprob ``meaning``s, its ``computation``, or the ``draw`` of tokens.
        why: How.
        slot: Where a user sets it.
        quirks: The quirks that cover it.
    """

    name: str
    a: Any
    b: Any
    concern: causes.Concern
    why: str
    slot: str = ""
    quirks: tuple[Coverage, ...] = ()


class Comparison(ParityRecord):
    """Everything that differs between two dumps.

    Attributes:
        format: `COMPARISON_FORMAT`.
        a: The reference.
        b: The candidate.
        profile: Name of the set of thresholds.
        kinds: The rows, by kind.
        effective: Settings of the engines that differ.
        settings: Settings of the configurations that differ: slots as in force, and how samples were drawn.
        versions: Versions that differ.
        quirks: Quirks that are in force on one side alone.
        causes: The settings among them that probably moved parity; the likeliest first.
        reading: What the figures say together, in one or two sentences.
    """

    format: int = COMPARISON_FORMAT
    a: Side
    b: Side
    profile: str
    kinds: tuple[Compared, ...]
    effective: tuple[Change, ...]
    settings: tuple[Change, ...]
    versions: tuple[Change, ...]
    quirks: tuple[Change, ...]
    causes: tuple[Cause, ...]
    reading: str

    @property
    def passed(self) -> bool:
        """No threshold is crossed."""
        return all(kind.level != "fail" for kind in self.kinds)

    def kind(self, name: Kind) -> Compared | None:
        """Returns the rows of one kind; None if there are none."""
        return next((kind for kind in self.kinds if kind.kind == name), None)


def compare(
    a: Dump,
    b: Dump,
    *,
    profile: str = DEFAULT_PROFILE,
    thresholds: Iterable[str] = (),
    cover: Cover = lambda _: (),
    decode: Decode | None = None,
) -> Comparison:
    """Compares two dumps.

    Args:
        a: The reference.
        b: The candidate; made ``--tokens-of`` A, it has scored A's tokens too.
        profile: Name of a set of thresholds.
        thresholds: Further ones, as ``metric=limit``.
        cover: Gives the quirks that set a slot.
        decode: Turns token ids into text, for the worst tokens.

    Raises:
        UsageError: The dumps are of different models, prompts or seeds; or profile or thresholds are wrong.
    """
    limits = chosen_thresholds(profile, thresholds)
    if problems := _incomparable(a, b):
        raise UsageError(f"these dumps cannot be compared: {'; '.join(problems)}")
    forced = _forced(a, b, limits, decode)
    if forced is not None:  # rows that part at their first token leave nothing to compare, and that is no failure then
        limits = tuple(limit for limit in limits if limit.metric != "tokens")
    kinds = [found for kind in _GENERATED if (found := _generated(kind, a, b, limits, decode)) is not None]
    kinds += [forced] if forced is not None else []
    effective, settings = changes(a.effective, b.effective), changes(a.settings, b.settings)
    return Comparison(
        a=_side(a),
        b=_side(b),
        profile=profile,
        kinds=tuple(kinds),
        effective=effective,
        settings=settings,
        versions=changes(a.versions, b.versions),
        quirks=changes(dict.fromkeys(a.quirks, "in force"), dict.fromkeys(b.quirks, "in force")),
        causes=_causes(effective, kinds, cover),
        reading=_reading(kinds),
    )


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    """Returns the names under which two mappings hold different values, or only one holds any."""
    found = []
    for name in sorted(a.keys() | b.keys()):
        left, right = a.get(name, _NOTHING), b.get(name, _NOTHING)
        if left is _NOTHING:
            found.append(Change(name=name, b=right, missing="a"))
        elif right is _NOTHING:
            found.append(Change(name=name, a=left, missing="b"))
        elif left != right:
            found.append(Change(name=name, a=left, b=right))
    return tuple(found)


def _side(dump: Dump) -> Side:
    return Side(date=dump.date, model=dump.model, platform=dump.platform, versions=dump.versions, plan=dump.plan)


def _incomparable(a: Dump, b: Dump) -> list[str]:
    """Why two dumps say nothing about each other; all reasons."""
    problems = []
    if a.config_digest != b.config_digest:
        names = f"{shown(a.model)} ({a.model_type}) and {shown(b.model)} ({b.model_type})"
        problems.append(f"they are of different models: {names} have different config.json files")
    elif a.weights_digest and b.weights_digest and a.weights_digest != b.weights_digest:
        problems.append(f"they are of different weights of {shown(a.model)}: the files of the two checkpoints differ")
    if a.prompts != b.prompts:
        pairs = zip(a.prompts, b.prompts, strict=False)
        first = next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(a.prompts), len(b.prompts)))
        counts = f"{len(a.prompts)} and {len(b.prompts)} prompts; the first that differs is number {first}"
        problems.append(f"they are of different prompts ({counts}): make both with the same --prompts and tokenizer")
    elif _keys(a) != _keys(b):
        problems.append("their samples have different seeds or numbers: make both with the same --seed and --samples")
    return problems


def _keys(dump: Dump) -> list[tuple[str, int, int | None]]:
    return [(row.kind, row.prompt, row.seed) for row in dump.rows]


def _generated(
    kind: Literal["greedy", "sampled"], a: Dump, b: Dump, limits: Sequence[Threshold], decode: Decode | None
) -> Compared | None:
    """Compares the rows that both engines made up to the first token that differs."""
    pairs = [(x, y) for x, y in zip(a.rows, b.rows, strict=True) if x.kind == kind]
    if not pairs:
        return None
    diverged = [_first_difference(x.tokens, y.tokens) for x, y in pairs]
    samples = []
    for (x, y), end in zip(pairs, diverged, strict=True):
        samples.append(
            Sample(
                prompt=a.prompts[x.prompt],
                tokens=x.tokens[:end],
                rollout=x.logprobs[:end],
                trainer=y.logprobs[:end],
                scoring=_scoring(kind, a),
                note=f"prompt {x.prompt}" + ("" if x.seed is None else f", seed {x.seed}"),
            )
        )
    tokens = sum(len(x.tokens) for x, _ in pairs)
    return _compared(kind, samples, diverged, tokens, limits, decode)


def _forced(a: Dump, b: Dump, limits: Sequence[Threshold], decode: Decode | None) -> Compared | None:
    """Compares what both engines make of A's tokens by prefill; None if B has not scored them."""
    ours, theirs = a.scored.get(a.digest), b.scored.get(a.digest)
    if ours is None or theirs is None:
        return None
    samples = []
    for row, left, right in zip(a.rows, ours, theirs, strict=True):
        end = min(len(left), len(right), len(row.tokens))
        samples.append(
            Sample(
                prompt=a.prompts[row.prompt],
                tokens=row.tokens[:end],
                rollout=left[:end],
                trainer=right[:end],
                note=f"{row.kind}, prompt {row.prompt}" + ("" if row.seed is None else f", seed {row.seed}"),
            )
        )
    tokens = sum(len(sample.tokens) for sample in samples)
    return _compared("teacher-forced", samples, [None] * len(samples), tokens, limits, decode)


def _compared(
    kind: Kind,
    samples: Sequence[Sample],
    diverged: Sequence[int | None],
    tokens: int,
    limits: Sequence[Threshold],
    decode: Decode | None,
) -> Compared:
    found = measured(samples, decode=decode)
    return Compared(
        kind=kind,
        rows=len(samples),
        identical=sum(end is None for end in diverged),
        diverged=tuple(diverged),
        tokens=tokens,
        equal_tokens=sum(len(sample.tokens) for sample in samples),
        metrics=found.metrics,
        verdicts=judge(found.metrics, limits),
        by_position=found.by_position,
        histogram=found.histogram,
        worst=found.worst,
    )


def _scoring(kind: str, dump: Dump) -> Scoring:
    if kind == "greedy":
        return Scoring()
    drawn = {name: dump.settings.get(f"sampling.{name}") for name in ("temperature", "top_p", "top_k")}
    return Scoring(**{name: value for name, value in drawn.items() if value is not None})


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Returns where two rows part; None if they are the same. A row that ends before the other parts from it there."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


# ---- what follows


def _causes(effective: Iterable[Change], kinds: Sequence[Compared], cover: Cover) -> tuple[Cause, ...]:
    """Returns the changed settings that are known to matter.

    Where prefill agrees, what a logprob means or how tokens are drawn is likelier than how it is computed, and goes first.
    """
    forced = next((kind for kind in kinds if kind.kind == "teacher-forced"), None)
    order = ("meaning", "draw", "computation") if forced is None or forced.level == "ok" else ("computation", "meaning", "draw")
    known = [(change, fact) for change in effective if (fact := causes.known(change.name)) is not None and not _is_idle(change)]
    found = [_cause(change, fact, cover) for change, fact in known]
    return tuple(sorted(found, key=lambda cause: (order.index(cause.concern), causes.rank(cause.name), cause.name)))


def _cause(change: Change, fact: causes.Known, cover: Cover) -> Cause:
    slot = change.name if change.name.startswith("env.") else fact.slot
    return Cause(name=change.name, a=change.a, b=change.b, concern=fact.concern, why=fact.why, slot=slot, quirks=cover(slot))


def _is_idle(change: Change) -> bool:
    """A setting that one version alone has says little: off or open it changes nothing, and most serve other models."""
    value = change.a if change.missing == "b" else change.b
    return change.missing is not None and (not causes.is_exact(change.name) or value in (None, False, "auto", 0, [], {}))


def _reading(kinds: Sequence[Compared]) -> str:
    by_kind = {kind.kind: kind for kind in kinds}
    forced = by_kind.pop("teacher-forced", None)
    made = list(by_kind.values())
    failed = [kind.kind for kind in made if kind.level == "fail"]
    diverged = sum(kind.rows - kind.identical for kind in made)
    rows = sum(kind.rows for kind in made)
    if forced is not None and forced.level == "fail":
        return (
            "The engines disagree on the same tokens, scored at once by prefill: the weights, their dtype or the kernels "
            "differ. Begin with the settings of computation."
        )
    if failed and forced is None:
        return (
            f"The logprobs of {' and '.join(failed)} tokens differ. Make B with --tokens-of A, and it shows whether the "
            "computation differs, or what a logprob means."
        )
    if failed:
        return (
            f"Both engines agree on the same tokens, scored at once by prefill, but not on what they report with their "
            f"{' and '.join(failed)} tokens: look at what a logprob means (logprobs_mode), at sampling, and at decoding."
        )
    if not diverged:
        return f"Both engines make the same tokens in all {rows} rows, with logprobs within the limits."
    parted = f"Logprobs are within the limits; {diverged} of {rows} rows part at some token"
    if _drawn_otherwise(by_kind.get("sampled"), forced):
        return (
            f"{parted}. Rounding cannot part that many sampled rows: B draws other random numbers from the same seeds. The "
            "distribution may be the same, but a seed does not carry over."
        )
    return f"{parted}, as rows do where two tokens are about equally probable and the engines round differently."


def _drawn_otherwise(sampled: Compared | None, forced: Compared | None) -> bool:
    """Whether more sampled rows part than rounding explains.

    With the same random numbers, logits that differ by at most e change the choice of a token with a probability of at most
    about 2 e; twice that and two rows more are allowed.
    """
    if sampled is None:
        return False
    noise = (forced or sampled).metrics["max_abs_delta"]
    return sampled.rows - sampled.identical > 2 + 4 * noise * sampled.tokens
