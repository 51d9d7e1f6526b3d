"""What a parity run found, as records that travel as JSON: samples, results by scenario, steps of an ablation, the report.

Throughout, P and G are numbers of prompt tokens and of generated tokens; logprobs and deltas are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

#: Version of the format of reports.
FORMAT: Final = 3
#: Separates the names of settings that are changed together.
JOINT: Final = " + "
#: Labels of the checkpoint's weights, and of those that stand for the policy after an optimizer step.
OLD, NEW = "a", "b"

#: Called with the name of the next step.
Notify: TypeAlias = Callable[[str], object]
#: ``rounding``: a limit is crossed by no more than what the dtypes of both sides round on the same tokens.
Level: TypeAlias = Literal["ok", "warn", "rounding", "fail"]
#: What a limit bounds: the value from above (``high``), from below (``low``), or its absolute value (``size``).
Side: TypeAlias = Literal["high", "low", "size"]
#: What is needed to try a value: another pass of the trainer, or another engine.
How: TypeAlias = Literal["rescore", "restart"]

LEVELS: tuple[Level, ...] = ("ok", "warn", "rounding", "fail")


class ParityRecord(BaseModel):
    """Base of the records: frozen, strict about keys, and able to hold NaN and infinity in JSON (as texts)."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Scoring(ParityRecord):
    """How a sample was made, and so how the trainer must score it."""

    temperature: float = 1.0  #: divides the logits; 1 for none, also of greedy samples
    top_p: float = 1.0  #: smallest share of probability that was sampled from; 1 for all
    top_k: int = -1  #: number of most probable tokens that were sampled from; -1 for all
    weights: tuple[tuple[str, int, int], ...] = ()  #: which weights generated which tokens: (label, start, end) spans in order


class Sample(ParityRecord):
    """One sequence with the logprobs of both sides."""

    prompt: tuple[int, ...]  #: [P] token ids
    tokens: tuple[int, ...]  #: [G] token ids that the engine generated, or that it scored
    rollout: tuple[float, ...]  #: [G] logprobs of the engine
    trainer: tuple[float, ...] = ()  #: [G] logprobs of the trainer for the same tokens; empty before it has scored them
    scoring: Scoring = Scoring()
    note: str = ""  #: what sets it apart from the other samples of its scenario (``rank 1``)


class Bin(ParityRecord):
    """The tokens of one part of a breakdown."""

    label: str  #: ``0-7`` (positions) or ``0.1-0.5`` (probabilities)
    tokens: int
    mean_delta: float
    mean_abs_delta: float
    max_abs_delta: float


class WorstToken(ParityRecord):
    """A token on which the sides disagree most."""

    sample: int  #: number of the sample in its scenario
    position: int  #: among the generated tokens, from 0
    token: int
    text: str  #: the token as text; empty without a tokenizer
    before: str  #: what comes before it: text, or token ids without a tokenizer
    rollout: float
    trainer: float
    note: str = ""


class Verdict(ParityRecord):
    """One metric against one threshold."""

    metric: str
    value: float
    threshold: str  #: the threshold's name; limit, side and source are also the threshold's
    limit: float
    side: Side = "high"
    level: Level
    source: str


def worst_level(verdicts: Iterable[Verdict], metric: str | None = None) -> Level:
    """Returns the worst level of verdicts, of all or of those on one metric; ``ok`` without any."""
    return max((item.level for item in verdicts if metric in (None, item.metric)), key=LEVELS.index, default="ok")


class Result(ParityRecord):
    """One scenario."""

    scenario: str
    title: str  #: what it tests, in one line
    status: Literal["measured", "skipped", "failed"] = "measured"
    reason: str = ""  #: why it was skipped (it does not concern this run) or failed
    gates: bool = True  #: a crossed threshold counts; cases that the configuration excludes are measured for information only
    seconds: float = 0.0
    metrics: dict[str, float] = {}  #: by the names of `worker.lab.parity.metrics.METRICS`
    verdicts: tuple[Verdict, ...] = ()  #: one per threshold whose metric was measured
    #: ``mean_abs_delta`` and ``kl_k3`` that rounding alone makes on these samples; empty where no limit is crossed
    rounding: dict[str, float] = {}
    by_position: tuple[Bin, ...] = ()  #: by position among the generated tokens
    by_probability: tuple[Bin, ...] = ()  #: by the trainer's probability of the token
    worst: tuple[WorstToken, ...] = ()  #: those with the largest differences, the largest first
    notes: dict[str, Any] = {}  #: further facts by name: how far the weights were changed, …
    samples: tuple[Sample, ...] = ()  #: left out of what people read

    @property
    def level(self) -> Level:
        """The worst of its verdicts; ``fail`` also if the scenario itself failed."""
        return "fail" if self.status == "failed" else worst_level(self.verdicts)

    @property
    def counts(self) -> bool:
        """It counts for the report's verdict."""
        return self.gates and self.status != "skipped"


class Change(ParityRecord):
    """Settings with their values before and after; of several, values are lists."""

    setting: str  #: path in the configuration (``engine.logprobs_mode``), or ``quirk ID``; of several, joined by `JOINT`
    before: Any  #: the value in the user's run, as in force; None if it is not set
    after: Any  #: the value that was tried

    @classmethod
    def of(cls, names: Iterable[str], before: Iterable[Any], after: Iterable[Any]) -> Change:
        """Joins what changes together."""
        old, new = list(before), list(after)
        is_alone = len(old) == 1
        return cls(setting=JOINT.join(names), before=old[0] if is_alone else old, after=new[0] if is_alone else new)

    @property
    def parts(self) -> tuple[tuple[str, Any, Any], ...]:
        """Name and values of each setting."""
        names = self.setting.split(JOINT)
        if len(names) == 1:
            return ((self.setting, self.before, self.after),)
        return tuple(zip(names, self.before, self.after, strict=True))


class Step(Change):
    """Settings that were changed from the user's configuration: one alone, or several that help together."""

    how: How
    results: tuple[Result, ...] = ()  #: the scenarios that were measured again
    error: str = ""  #: why it was not tried
    seconds: float = 0.0  #: how long it took, an engine's start included


class Coverage(ParityRecord):
    """A quirk that sets what a step changed."""

    id: str
    state: str  #: in the user's plan: ``active``, ``disabled``, ``not_matched``, …
    because: str  #: why it has that state, or why its value is not in force


class Attribution(Change):
    """A setting that affects parity."""

    scenario: str  #: the scenario that it changes most
    metric: str  #: the metric that it changes most
    value_before: float
    value_after: float
    restores: tuple[str, ...] = ()  #: the scenarios that failed and no longer do
    worsens: tuple[str, ...] = ()  #: the scenarios that failed only with the setting changed
    quirks: tuple[Coverage, ...] = ()

    @property
    def is_uncovered(self) -> bool:
        """It restores something, and no quirk that concerns the run sets it."""
        return bool(self.restores) and all(quirk.state == "not_matched" for quirk in self.quirks)


class Report(ParityRecord):
    """A whole parity run."""

    format: int = FORMAT
    date: str  #: ISO
    model: str
    model_type: str
    platform: str  #: ``cpu`` or ``cuda``
    versions: dict[str, str]  #: of vllm, torch, transformers and model-quirks, and the device's name under ``device``
    settings: dict[str, Any]  #: the effective slots: as set, else as the engine reported them
    active_quirks: tuple[str, ...]
    plan: str  #: the plan's digest
    profile: str  #: name of the set of thresholds
    results: tuple[Result, ...]
    steps: tuple[Step, ...] = ()  #: the steps of the ablation
    attributions: tuple[Attribution, ...] = ()  #: the settings that affect parity; the strongest first
    warnings: tuple[str, ...] = ()

    @property
    def counted(self) -> list[Result]:
        """The scenarios that decide on the verdict."""
        return [result for result in self.results if result.counts]

    @property
    def measured(self) -> list[Result]:
        """The scenarios that have figures."""
        return [result for result in self.results if result.status == "measured"]

    @property
    def passed(self) -> bool:
        """No scenario that counts crossed a threshold or failed, and at least one was measured."""
        return bool(self.counted) and all(result.level != "fail" for result in self.counted)

    def without_samples(self) -> Report:
        """Returns the report as people and machines read it: tokens and logprobs of every sample left out."""

        def slim(results: tuple[Result, ...]) -> tuple[Result, ...]:
            return tuple(result.model_copy(update={"samples": ()}) for result in results)

        steps = tuple(step.model_copy(update={"results": slim(step.results)}) for step in self.steps)
        return self.model_copy(update={"results": slim(self.results), "steps": steps})
