"""Compares what two engines generated from the same prompts and seeds: tokens, logprobs, effective settings.

The first dump is the reference (the rollout, in the words of `worker.lab.parity.metrics`), the second one the candidate (the
trainer), so ``delta`` is A - B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from quirks_core.base.errors import UsageError, shown
from quirks_core.plan.diff import Change, changes
from worker.lab.compare.causes import KNOWN, Concern, key
from worker.lab.compare.dump import Dump, Row
from worker.lab.parity.metrics import measured
from worker.lab.parity.records import Level, ParityRecord, Sample, Verdict, WorstToken, worst_level
from worker.lab.parity.thresholds import DEFAULT_PROFILE, Threshold, chosen_thresholds, judge

#: Version of the comparisons' format.
COMPARISON_FORMAT = 2
Kind = Literal["greedy", "sampled", "teacher-forced"]

_GENERATED: tuple[Literal["greedy", "sampled"], ...] = ("greedy", "sampled")


class Side(ParityRecord):
    """One of the two engines: when its dump was made, its model and platform, versions by package, its plan's digest."""

    date: str
    model: str
    platform: str
    versions: dict[str, str]
    plan: str


class Compared(ParityRecord):
    """The rows of one kind."""

    #: ``greedy`` and ``sampled``: what both engines generated, up to the first token that differs, with the logprobs that they
    #: reported. ``teacher-forced``: all of A's tokens, scored by both engines by prefill.
    kind: Kind
    rows: int  #: rows that were compared
    identical: int  #: rows with the same tokens on both sides
    #: per row the position of the first token that differs, from 0; None of identical rows
    diverged: tuple[int | None, ...] = ()
    tokens: int  #: tokens of A's rows
    equal_tokens: int  #: those before the first difference
    metrics: dict[str, float]  #: values by the names of `worker.lab.parity.metrics.METRICS`, over the equal tokens
    verdicts: tuple[Verdict, ...] = ()  #: one per threshold
    worst: tuple[WorstToken, ...] = ()  #: the tokens with the largest differences

    @property
    def level(self) -> Level:
        """The worst of its verdicts."""
        return worst_level(self.verdicts)


class Cause(ParityRecord):
    """A setting that differs and is known to change tokens or logprobs."""

    name: str  #: the engine's name for it
    a: Any  #: A's value; None also where it has no such setting
    b: Any  #: B's value; likewise
    concern: Concern  #: what it changes: what a logprob ``meaning``s, its ``computation``, or the ``draw`` of tokens
    why: str


class Comparison(ParityRecord):
    """Everything that differs between two dumps."""

    format: int = COMPARISON_FORMAT
    a: Side  #: the reference
    b: Side  #: the candidate
    profile: str  #: name of the set of thresholds
    kinds: tuple[Compared, ...]  #: the rows, by kind
    effective: tuple[Change, ...]  #: settings of the engines that differ
    settings: tuple[Change, ...]  #: settings of the configurations that differ: slots as in force, and how samples were drawn
    versions: tuple[Change, ...]  #: versions that differ
    quirks: tuple[Change, ...]  #: quirks that are in force on one side alone
    causes: tuple[Cause, ...]  #: the settings among them that are known causes of differences; the most likely first
    reading: str  #: the conclusion from all figures, in one or two sentences

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
) -> Comparison:
    """Compares the dump of the reference with that of a candidate, which may have scored the reference's tokens too.

    Raises:
        UsageError: The dumps are of different models, prompts or seeds; or profile or thresholds are wrong.
    """
    limits = chosen_thresholds(profile, thresholds)
    if problems := _incomparable(a, b):
        raise UsageError(f"these dumps cannot be compared: {'; '.join(problems)}")
    forced = _forced(a, b, limits)
    if forced is not None:  # rows that differ from their first token on leave nothing to compare, which is no failure then
        limits = tuple(limit for limit in limits if limit.metric != "tokens")
    generated = [_generated(kind, a, b, limits) for kind in _GENERATED]
    kinds = [found for found in (*generated, forced) if found is not None]
    effective = tuple(changes(a.effective, b.effective))
    sides = [Side.model_validate(dump.model_dump(include=set(Side.model_fields))) for dump in (a, b)]
    return Comparison(
        a=sides[0],
        b=sides[1],
        profile=profile,
        kinds=tuple(kinds),
        effective=effective,
        settings=tuple(changes(a.settings, b.settings)),
        versions=tuple(changes(a.versions, b.versions)),
        quirks=tuple(changes(dict.fromkeys(a.quirks, "in force"), dict.fromkeys(b.quirks, "in force"))),
        causes=_causes(effective, forced is None or forced.level == "ok"),
        reading=_reading(kinds),
    )


def _incomparable(a: Dump, b: Dump) -> list[str]:
    problems = []
    if a.config_digest != b.config_digest:
        names = f"{shown(a.model)} ({a.model_type}) and {shown(b.model)} ({b.model_type})"
        problems.append(f"they are of different models: {names} have different config.json files")
    if a.prompts != b.prompts:
        counts = f"{len(a.prompts)} and {len(b.prompts)} prompts; the first that differs is number"
        first = _first_difference(a.prompts, b.prompts)
        problems.append(f"they are of different prompts ({counts} {first}): make both with the same --prompts and tokenizer")
    elif [row.origin for row in a.rows] != [row.origin for row in b.rows]:
        problems.append("their samples have different seeds or numbers: make both with the same --seed")
    return problems


def _generated(kind: Literal["greedy", "sampled"], a: Dump, b: Dump, limits: Sequence[Threshold]) -> Compared | None:
    pairs = [(x, y) for x, y in zip(a.rows, b.rows, strict=True) if x.kind == kind]
    diverged = [_first_difference(x.tokens, y.tokens) for x, y in pairs]
    samples = [_sample(a, x, x.logprobs[:end], y.logprobs[:end]) for (x, y), end in zip(pairs, diverged, strict=True)]
    return _compared(kind, samples, diverged, sum(len(x.tokens) for x, _ in pairs), limits) if pairs else None


def _forced(a: Dump, b: Dump, limits: Sequence[Threshold]) -> Compared | None:
    """Compares both engines' prefill logprobs of A's tokens; None if B has not scored them."""
    ours, theirs = a.scored.get(a.digest), b.scored.get(a.digest)
    if ours is None or theirs is None:
        return None
    rows = zip(a.rows, ours, theirs, strict=True)
    samples = [_sample(a, row, left, right, f"{row.kind}, ") for row, left, right in rows]
    tokens = sum(len(sample.tokens) for sample in samples)
    return _compared("teacher-forced", samples, [None] * len(samples), tokens, limits)


def _sample(a: Dump, row: Row, left: Sequence[float], right: Sequence[float], note: str = "") -> Sample:
    """Pairs the logprobs of both engines, up to the shorter list."""
    end = min(len(left), len(right), len(row.tokens))
    return Sample(
        prompt=a.prompts[row.prompt],
        tokens=row.tokens[:end],
        rollout=tuple(left[:end]),
        trainer=tuple(right[:end]),
        note=f"{note}prompt {row.prompt}" + ("" if row.seed is None else f", seed {row.seed}"),
    )


def _compared(
    kind: Kind,
    samples: Sequence[Sample],
    diverged: Sequence[int | None],
    tokens: int,
    limits: Sequence[Threshold],
) -> Compared:
    found = measured(samples)
    return Compared(
        kind=kind,
        rows=len(samples),
        identical=sum(end is None for end in diverged),
        diverged=tuple(diverged),
        tokens=tokens,
        equal_tokens=sum(len(sample.tokens) for sample in samples),
        metrics=found.metrics,
        verdicts=judge(found.metrics, limits),
        worst=found.worst,
    )


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """Returns the first position where two rows differ; None if they are the same. If one row is shorter, that is its end."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


# ---- conclusions


def _causes(effective: Iterable[Change], prefill_agrees: bool) -> tuple[Cause, ...]:
    """Returns the changed settings that are known to matter.

    If prefill agrees, the meaning of a logprob or the drawing of tokens is a likelier cause than the computation, and comes
    first.
    """
    order = ("meaning", "draw", "computation") if prefill_agrees else ("computation", "meaning", "draw")
    names, found = list(KNOWN), []
    for change in effective:
        if (known := key(change.name)) is not None and not _is_idle(change):
            concern, why = KNOWN[known]
            cause = Cause(name=change.name, a=change.a, b=change.b, concern=concern, why=why)
            found.append((order.index(concern), names.index(known), change.name, cause))
    return tuple(cause for *_, cause in sorted(found, key=lambda item: item[:3]))


def _is_idle(change: Change) -> bool:
    """A setting that only one version has is rarely a cause: off or unset it changes nothing, and most are for other models."""
    value = change.a if change.missing == "b" else change.b
    return change.missing is not None and (change.name not in KNOWN or value in (None, False, "auto", 0, [], {}))


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
            "differ. Start with the settings that concern the computation."
        )
    if failed and forced is None:
        return (
            f"The logprobs of {' and '.join(failed)} tokens differ. Make B with --tokens-of A to see whether the "
            "computation differs or the meaning of a logprob."
        )
    if failed:
        return (
            f"Both engines agree on the same tokens, scored at once by prefill, but not on what they report with their "
            f"{' and '.join(failed)} tokens: look at what a logprob means (logprobs_mode), at sampling, and at decoding."
        )
    if not diverged:
        return f"Both engines generate the same tokens in all {rows} rows, with logprobs within the limits."
    parted = f"Logprobs are within the limits; {diverged} of {rows} rows differ from some token on"
    if _drawn_otherwise(by_kind.get("sampled"), forced):
        return (
            f"{parted}. Rounding cannot explain that many sampled rows: B draws other random numbers from the same seeds. The "
            "distribution may be the same, but the same seed gives other samples."
        )
    return f"{parted}, which is normal where two tokens are about equally probable and the engines round differently."


def _drawn_otherwise(sampled: Compared | None, forced: Compared | None) -> bool:
    """Whether more sampled rows differ than rounding explains.

    With the same random numbers, logits that differ by at most e change the choice of a token with a probability of at most
    about 2 e; twice that and two rows more are allowed.
    """
    if sampled is None:
        return False
    noise = (forced or sampled).metrics["max_abs_delta"]
    return sampled.rows - sampled.identical > 2 + 4 * noise * sampled.tokens
