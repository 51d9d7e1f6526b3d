"""What a parity run found, as records that travel as JSON: samples, results by scenario, steps of the ladder, the report."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

#: Version of the report's format; a report of another one is refused.
FORMAT = 1


class ParityRecord(BaseModel):
    """Base of the records: frozen, strict about keys, and able to hold NaN and infinity in JSON (as texts)."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Scoring(ParityRecord):
    """How a sample was made, and so how the trainer must score it.

    Attributes:
        temperature: Divides the logits; 1 for none. Greedy samples have 1.
        top_p: Smallest share of probability that was sampled from; 1 for all.
        top_k: Number of most probable tokens that were sampled from; -1 for all.
        weights: Which weights made which of the G tokens: ``(label, start, end)`` spans in order.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    weights: tuple[tuple[str, int, int], ...] = ()


class Sample(ParityRecord):
    """One sequence with the logprobs of both sides.

    Attributes:
        prompt: P token ids.
        tokens: G token ids that the engine generated, or that it scored.
        rollout: G logprobs of the engine, in nats.
        trainer: G logprobs of the trainer for the same tokens, in nats; empty before it has scored them.
        scoring: How the trainer has to score it.
        note: What sets it apart from the other samples of its scenario (``rank 1``); empty if nothing does.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    rollout: tuple[float, ...]
    trainer: tuple[float, ...] = ()
    scoring: Scoring = Scoring()
    note: str = ""


class Bin(ParityRecord):
    """The tokens of one part of a breakdown.

    Attributes:
        label: Which tokens: ``0-7`` (positions) or ``0.1-0.5`` (probabilities).
        tokens: How many.
        mean_delta: Mean of rollout - trainer, in nats.
        mean_abs_delta: Mean of its absolute value.
        max_abs_delta: Largest absolute value.
    """

    label: str
    tokens: int
    mean_delta: float
    mean_abs_delta: float
    max_abs_delta: float


class Histogram(ParityRecord):
    """Tokens by log ratio (trainer - rollout, in nats).

    Attributes:
        edges: N + 1 edges, rising; the outermost bins also hold what lies beyond.
        counts: N counts.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class WorstToken(ParityRecord):
    """A token on which the sides disagree most.

    Attributes:
        sample: Number of the sample in its scenario.
        position: Position among the generated tokens, from 0.
        token: Token id.
        text: The token as text; empty without a tokenizer.
        before: What comes before it: text, or token ids without a tokenizer.
        rollout: The engine's logprob.
        trainer: The trainer's.
        note: The sample's note.
    """

    sample: int
    position: int
    token: int
    text: str
    before: str
    rollout: float
    trainer: float
    note: str = ""


class Verdict(ParityRecord):
    """One metric against one threshold.

    Attributes:
        metric: The metric's name.
        value: What was measured.
        threshold: The threshold's name.
        limit: Its limit.
        level: ``ok``, ``warn`` or ``fail``.
        source: Where the limit comes from.
    """

    metric: str
    value: float
    threshold: str
    limit: float
    level: Literal["ok", "warn", "fail"]
    source: str


class Result(ParityRecord):
    """One scenario.

    Attributes:
        scenario: Its name.
        title: What it asks, in one line.
        status: ``measured``, ``skipped`` (it does not concern this run, `reason` says why) or ``failed``.
        reason: Why it was skipped or failed.
        gates: Whether a crossed threshold counts. A scenario that the configuration rules out is measured for information.
        seconds: How long it took.
        metrics: Values by the names of `worker.parity.metrics.METRICS`.
        verdicts: One per threshold whose metric was measured.
        by_position: By position among the generated tokens.
        by_probability: By the trainer's probability of the token.
        histogram: Tokens by log ratio.
        worst: The tokens with the largest differences, the largest first.
        notes: Further facts, by name: how many tokens came from the prefix cache, how far the weights were changed, …
        samples: The samples; left out of what people read.
    """

    scenario: str
    title: str
    status: Literal["measured", "skipped", "failed"] = "measured"
    reason: str = ""
    gates: bool = True
    seconds: float = 0.0
    metrics: dict[str, float] = {}
    verdicts: tuple[Verdict, ...] = ()
    by_position: tuple[Bin, ...] = ()
    by_probability: tuple[Bin, ...] = ()
    histogram: Histogram | None = None
    worst: tuple[WorstToken, ...] = ()
    notes: dict[str, Any] = {}
    samples: tuple[Sample, ...] = ()

    @property
    def level(self) -> Literal["ok", "warn", "fail"]:
        """The worst of its verdicts; ``fail`` also if the scenario itself failed."""
        levels = {verdict.level for verdict in self.verdicts} | ({"fail"} if self.status == "failed" else set())
        return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"


class Step(ParityRecord):
    """One setting of the ladder, changed alone from the user's configuration.

    Attributes:
        setting: Its path in the configuration (``engine.logprobs_mode``), or ``quirk ID``.
        before: Its value in the user's run, as in force; None if it is left open.
        after: The value that was tried.
        how: What it took: ``restart`` of the engine, ``refit``, or ``rescore`` by the trainer alone.
        results: The scenarios that were measured anew.
        error: Why it could not be tried; empty if it could.
    """

    setting: str
    before: Any
    after: Any
    how: Literal["restart", "refit", "rescore"]
    results: tuple[Result, ...] = ()
    error: str = ""


class Coverage(ParityRecord):
    """A quirk that sets what a step changed.

    Attributes:
        id: The quirk.
        state: Its state in the user's plan: ``active``, ``disabled``, ``not_matched``, …
        because: Why it has that state.
        switch: What the user does to have it: the option or key to remove or add; empty if nothing is in its way.
    """

    id: str
    state: str
    because: str
    switch: str = ""


class Attribution(ParityRecord):
    """A setting that moves parity.

    Attributes:
        scenario: The scenario that it moves most.
        metric: The metric by which.
        setting: The setting, as in its `Step`.
        before: Its value in the user's run.
        after: The value that was tried.
        value_before: The metric in the user's run.
        value_after: The metric with the setting changed.
        restores: The scenarios that failed and no longer do.
        worsens: The scenarios that failed only with the setting changed.
        quirks: The quirks that cover it.
        skeleton: A declaration to begin a new quirk with, if it restores something and no quirk covers it; else empty.
    """

    scenario: str
    metric: str
    setting: str
    before: Any
    after: Any
    value_before: float
    value_after: float
    restores: tuple[str, ...] = ()
    worsens: tuple[str, ...] = ()
    quirks: tuple[Coverage, ...] = ()
    skeleton: str = ""


class Report(ParityRecord):
    """A whole parity run.

    Attributes:
        format: `FORMAT`.
        date: When it was made (ISO).
        model: Name of the model.
        model_type: Its ``model_type``.
        platform: ``cpu`` or ``cuda``; the device's name, where there is one, is in `versions`.
        versions: Versions of vllm, torch, transformers and model-quirks, and the device's name under ``device``.
        settings: The slots as in force: asked for, or what the engine reported where nobody asked.
        active_quirks: Ids of the quirks in force.
        plan: The plan's digest.
        profile: Name of the set of thresholds.
        results: By scenario.
        ladder: The steps, if settings were tried.
        attributions: What the ladder shows; the strongest first.
        warnings: What the user should know.
    """

    format: int = FORMAT
    date: str
    model: str
    model_type: str
    platform: str
    versions: dict[str, str]
    settings: dict[str, Any]
    active_quirks: tuple[str, ...]
    plan: str
    profile: str
    results: tuple[Result, ...]
    ladder: tuple[Step, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """No scenario that counts crossed a threshold or failed, and at least one was measured."""
        counted = [result for result in self.results if result.gates and result.status != "skipped"]
        return bool(counted) and all(result.level != "fail" for result in counted)

    def without_samples(self) -> Report:
        """Returns the report as people and machines read it: tokens and logprobs of every sample left out."""

        def slim(results: tuple[Result, ...]) -> tuple[Result, ...]:
            return tuple(result.model_copy(update={"samples": ()}) for result in results)

        ladder = tuple(step.model_copy(update={"results": slim(step.results)}) for step in self.ladder)
        return self.model_copy(update={"results": slim(self.results), "ladder": ladder})
