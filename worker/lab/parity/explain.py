"""The difference between rollout and trainer, split into parts that add up, and what remains if each part is removed.

Every part is a difference of two measured logprobs of the same tokens. They lead from the engine to the trainer over a model
that computes in float32 throughout::

    engine, decoding ─ engine, prefill ─ engine, float32 head ─ float32 ─ trainer, float32 head ─ trainer

so that their sum is Δ = rollout - trainer, token by token. A part's share is its mean along Δ, ``mean(sign(Δ) * part)``: the
shares add up to mean |Δ|. A part that works against the others has a negative share. What remains is measured on rollouts of an
engine with other settings, not computed from the parts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quirks_core.base.errors import QuirksError, UsageError, words
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.records import RefusedError
from quirks_core.plugins.planning import PlanOptions
from worker.async_worker import VllmAsyncGenerationWorker
from worker.engine import vllm_adapter
from worker.errors import EngineStartError
from worker.lab.parity.metrics import whole_metrics
from worker.lab.parity.prompts import Prompts, load_prompts
from worker.lab.parity.records import Distance, Notify, ParityRecord, Sample
from worker.lab.parity.scoring import distances
from worker.lab.parity.session import Session, distributions, prefilled, running
from worker.lab.parity.trainer import Trainer, TrainerOptions

_Floats = NDArray[np.float64]
#: Weights that many steps in float32 would leave.
_LATER = "later"
#: The checkpoint's weights in the engine's dtype.
_ROUNDED = "rounded"
_FLOAT32 = "float32"
_PACKAGES = ("vllm", "torch", "transformers")


class Part(ParityRecord):
    """One part of the difference."""

    what: str  #: what differs
    share: float  #: of mean |Δ|, in nats; the shares of all parts add up to it
    alone: float  #: its own mean absolute size, in nats


class Remains(ParityRecord):
    """An engine and a trainer, and the mean |Δ| of that engine's rollouts."""

    engine: str
    trainer: str
    mean_abs_delta: float
    max_abs_delta: float
    seconds: float  #: that the engine took for its rollouts
    trainer_seconds: float  #: that the trainer took to score them
    step_seconds: float  #: of its forward and backward pass over one of them
    memory: float  #: of weights and KV cache, as a multiple of the engine as it is


class Explanation(ParityRecord):
    """The difference of one run."""

    model: str
    engine: str  #: its dtype, and that of its head
    trainer: str  #: dtypes of weights, products and head, and the attention
    device: str  #: ``cpu``, or the name of the GPU
    temperature: float
    tokens: int
    mean_abs_delta: float
    max_abs_delta: float
    parts: tuple[Part, ...]
    remains: tuple[Remains, ...]  #: the run as it is first
    failed: dict[str, str]  #: by name, why other engines did not start: their parts are in the next ones
    whole: dict[str, float]  #: distances of whole distributions by metric, engine against trainer
    #: further mean absolute differences in nats by what they are of: they are no parts of this difference
    beside: dict[str, float]
    versions: dict[str, str]

    @property
    def best(self) -> Remains:
        """The setting that leaves least."""
        return min(self.remains, key=lambda row: row.mean_abs_delta)

    @property
    def next_best(self) -> Remains | None:
        """The best of the others."""
        others = [row for row in self.remains if row != self.best]
        return min(others, key=lambda row: row.mean_abs_delta, default=None)


class _Engine:
    """An engine's name, what differs from the user's, and its measured logprobs."""

    def __init__(self, name: str, changes: Mapping[str, Any], memory: float) -> None:
        self.name, self.changes, self.memory = name, changes, memory
        self.samples: list[Sample] = []  #: its own rollouts
        self.seconds = 0.0  #: that they took
        self.scores: _Floats = np.zeros(0)  #: [N] of the first engine's tokens, by prefill


class Explain:
    """One measurement; `run` makes it."""

    def __init__(
        self,
        config: GenerationConfig,
        planning: PlanOptions,
        *,
        prompts: Path | None = None,
        num_prompts: int | None = None,
        new_tokens: int = 64,
        seed: int = 0,
        device: str | None = None,
        notify: Notify = lambda _: None,
    ) -> None:
        """Checks everything that needs no engine, and loads the trainer's model.

        Args:
            config: The engine, and the trainer under ``train``; `train.dtype` must be set.
            planning: Plan options.
            prompts: File of prompts; built-in ones if None.
            num_prompts: How many to take at most.
            new_tokens: Tokens generated from each.
            seed: Seed of the samples.
            device: Where the trainer computes; a GPU if there is one, if None.
            notify: Called with each step.

        Raises:
            UsageError: The configuration does not set how the trainer computes, or something in it is wrong.
            TrainerLoadError: transformers cannot load the model.
        """
        train = config.train
        if train.dtype is None:
            raise UsageError(
                "how the trainer computes is unknown: set train.dtype (of its weights), train.autocast and train.head_dtype, "
                "or give --trainer"
            )
        self._planning, self._notify = planning, notify
        self._tokens, self._seed = new_tokens, seed
        self._config = config.overridden({"engine.load_format": "auto", "engine.max_logprobs": -1})
        self._prompts: Prompts = load_prompts(config.model, file=prompts, count=num_prompts, seed=seed)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._as_is = TrainerOptions(train.dtype, train.attn_implementation, train.head_dtype, device, train.autocast)
        notify("loading the trainer's model")
        self._trainer = Trainer.load(config.model.path, self._as_is, revision=config.model.revision)

    async def run(self) -> Explanation:
        """Starts one engine after the other, and measures.

        Raises:
            RefusedError, EngineStartError: The engine as it is cannot work or does not start.
        """
        first = _Engine("as it is", {}, 1.0)
        dtype, whole = await self._measure(first, first)
        engines, failed = [first], {}
        for engine in self._others(dtype):
            try:
                await self._measure(engine, first)
            except (EngineStartError, RefusedError) as error:
                failed[engine.name] = words(error)
            else:
                engines.append(engine)
        self._notify("scoring with the trainer")
        return await asyncio.to_thread(self._explained, engines, failed, dtype, whole)

    # ---- engines

    def _others(self, dtype: str) -> list[_Engine]:
        if dtype == _FLOAT32:
            return []
        head = _Engine("float32 head", {"engine.head_dtype": _FLOAT32}, 1.0)
        engines = [] if self._config.engine.head_dtype == _FLOAT32 else [head]
        return [*engines, _Engine("float32", {"engine.dtype": _FLOAT32}, 2.0)]

    async def _measure(self, engine: _Engine, first: _Engine) -> tuple[str, dict[str, float]]:
        """Has an engine generate its own samples and score those of the first; returns its dtype and distances."""
        self._notify(f"starting the engine {engine.name}")
        worker = VllmAsyncGenerationWorker(self._config.adjusted(engine.changes), options=self._planning)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(worker))
            made = {"new_tokens": self._tokens, "seed": self._seed}
            session = Session(worker, self._trainer, self._as_is, self._prompts, **made)
            self._prompts.check(session.max_model_len, self._tokens + 1)
            await session.generate()  # compiles what is compiled at the first request
            await worker.reset_prefix_cache_async()
            begun = time.perf_counter()
            engine.samples, _ = await session.generate()
            engine.seconds = time.perf_counter() - begun
            self._notify(f"scoring with the engine {engine.name}")
            engine.scores, whole = await self._scored(session, first.samples, whole=engine is first)
            return vllm_adapter.model_dtype(session.llm), whole

    async def _scored(self, session: Session, samples: Sequence[Sample], *, whole: bool) -> tuple[_Floats, dict[str, float]]:
        """Scores samples by prefill, at their temperature; and compares whole distributions with the trainer's."""
        temperature = samples[0].scoring.temperature
        if temperature == 1 and not whole:
            rows = await prefilled(session.worker, [(sample.prompt, sample.tokens) for sample in samples])
            return np.concatenate([np.array(row) for row in rows]), {}
        scores: list[_Floats] = []
        found: list[Distance] = []
        for sample in samples:  # one by one: each has megabytes
            logprobs = await distributions(session.worker, sample)
            ids = torch.tensor(sample.tokens)[:, None]
            scores.append((logprobs / temperature).log_softmax(-1).gather(1, ids)[:, 0].double().numpy())
            if whole:
                logits = await asyncio.to_thread(self._trainer.logits, sample, self._as_is)
                found += distances(logprobs, logits, temperature)
        return np.concatenate(scores), whole_metrics(found)

    # ---- the trainer

    def _logprobs(self, samples: Sequence[Sample], options: TrainerOptions, label: str | None = None) -> _Floats:
        """Returns the trainer's logprobs, [N]; with other weights if there is a label."""
        if label is not None:
            spans = [{"weights": ((label, 0, len(sample.tokens)),)} for sample in samples]
            samples = [
                sample.model_copy(update={"scoring": sample.scoring.model_copy(update=span)})
                for sample, span in zip(samples, spans, strict=True)
            ]
        return np.array([value for sample in self._trainer.score(samples, options) for value in sample.trainer])

    def _trainers(self) -> dict[str, TrainerOptions]:
        """The trainer as it is, with its head in float32, and in float32 throughout; those that are equal once."""
        options = {"as it is": self._as_is, "float32 head": replace(self._as_is, head_dtype=_FLOAT32)}
        options[_FLOAT32] = replace(self._as_is, dtype=_FLOAT32, autocast=None, head_dtype=None)
        if self._as_is.dtype == _FLOAT32 and self._as_is.autocast is None:
            return {"as it is": options[_FLOAT32]}
        return options if self._as_is.head_dtype != _FLOAT32 else {name: options[name] for name in ("as it is", _FLOAT32)}

    def _explained(
        self, engines: Sequence[_Engine], failed: dict[str, str], dtype: str, whole: dict[str, float]
    ) -> Explanation:
        first = engines[0]
        trainers = self._trainers()
        scored = {name: self._logprobs(first.samples, options) for name, options in trainers.items()}
        rollout = np.array([value for sample in first.samples for value in sample.rollout])
        delta = rollout - scored["as it is"]
        if not np.isfinite(delta).all():
            raise QuirksError("some logprobs are not finite, so their differences cannot be explained; run quirks parity")
        steps = self._steps(engines, scored, rollout, dtype)
        worker = VllmAsyncGenerationWorker(self._config, options=self._planning)
        return Explanation(
            model=worker.plan.context.model.name,
            engine=f"{dtype}, head {self._config.engine.head_dtype or 'as the rest'}",
            trainer=_described(self._as_is),
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            temperature=first.samples[0].scoring.temperature,
            tokens=len(delta),
            mean_abs_delta=float(np.abs(delta).mean()),
            max_abs_delta=float(np.abs(delta).max()),
            parts=tuple(
                Part(what=what, share=float((np.sign(delta) * part).mean()), alone=float(np.abs(part).mean()))
                for what, part in steps.items()
            ),
            remains=tuple(self._remains(engines, trainers)),
            failed=failed,
            whole=whole,
            beside=self._beside(first.samples, rollout, scored, dtype),
            versions={name: text for name, text in worker.plan.context.packages.items() if name in _PACKAGES},
        )

    def _steps(
        self, engines: Sequence[_Engine], scored: Mapping[str, _Floats], rollout: _Floats, dtype: str
    ) -> dict[str, _Floats]:
        """Returns the parts, [N] each; they add up to rollout - trainer."""
        found = {engine.name: engine.scores for engine in engines}
        exact = scored.get(_FLOAT32, scored["as it is"])
        steps = {"the engine's decoding, against its own prefill": rollout - found["as it is"]}
        last = found["as it is"]
        if "float32 head" in found:
            steps[f"the engine's head in {dtype}"] = last - found["float32 head"]
            last = found["float32 head"]
        left = "layers" if self._config.engine.head_dtype == _FLOAT32 or "float32 head" in found else "head and layers"
        rest = "kernels in float32" if _FLOAT32 in (*found, dtype) else f"{left} in {dtype}"
        if _FLOAT32 in found:
            weights = self._rounding(engines[0].samples, exact, dtype)
            steps[f"the engine's {left} in {dtype}"] = last - found[_FLOAT32] - weights
            steps[f"the engine's weights rounded to {dtype}"] = weights
            last = found[_FLOAT32]
        steps[f"the engine's {rest}, against transformers"] = last - exact
        products = self._as_is.autocast or self._as_is.dtype
        if "float32 head" in scored:
            steps[f"the trainer's layers in {products}"] = exact - scored["float32 head"]
            steps[f"the trainer's head in {products}"] = scored["float32 head"] - scored["as it is"]
        elif _FLOAT32 in scored:
            steps[f"the trainer's layers in {products}"] = exact - scored["as it is"]
        return steps

    def _rounding(self, samples: Sequence[Sample], exact: _Floats, dtype: str) -> _Floats:
        """Returns what the rounding of the checkpoint's weights changes, [N]: nothing if they have the engine's dtype."""
        if str(self._trainer.model.dtype) != f"torch.{_FLOAT32}" or self._as_is.dtype != _FLOAT32:
            return np.zeros(len(exact))
        self._trainer.round(_ROUNDED, getattr(torch, dtype))
        options = replace(self._as_is, autocast=None, head_dtype=None)
        rounded: _Floats = self._logprobs(samples, options, _ROUNDED) - exact
        return rounded

    def _remains(self, engines: Sequence[_Engine], trainers: Mapping[str, TrainerOptions]) -> list[Remains]:
        found = []
        steps = {name: self._trainer.step_seconds(engines[0].samples[0], options) for name, options in trainers.items()}
        for engine in engines:
            rollout = np.array([value for sample in engine.samples for value in sample.rollout])
            for name, options in trainers.items():
                begun = time.perf_counter()
                delta = np.abs(rollout - self._logprobs(engine.samples, options))
                trainer_seconds = time.perf_counter() - begun
                sizes = {"mean_abs_delta": float(delta.mean()), "max_abs_delta": float(delta.max())}
                cost = {"seconds": engine.seconds, "trainer_seconds": trainer_seconds, "memory": engine.memory}
                cost["step_seconds"] = steps[name]
                found.append(Remains(engine=engine.name, trainer=name, **sizes, **cost))
        return found

    def _beside(
        self, samples: Sequence[Sample], rollout: _Floats, scored: Mapping[str, _Floats], dtype: str
    ) -> dict[str, float]:
        """What is no part of this difference: the trainer's attention, and the weights' rounding as training goes on."""
        current = self._as_is.attn_implementation or "sdpa"
        other = "eager" if current != "eager" else "sdpa"
        attention = self._logprobs(samples, replace(self._as_is, attn_implementation=other))
        found = {f"the trainer's attention, {other} instead of {current}": float(np.abs(attention - scored["as it is"]).mean())}
        if self._as_is.dtype == _FLOAT32 and dtype != _FLOAT32:
            self._trainer.unround(_LATER, getattr(torch, dtype))
            exact = replace(self._as_is, autocast=None, head_dtype=None)
            moved = self._logprobs(samples, exact, _LATER) - scored.get(_FLOAT32, scored["as it is"])
            found[f"weights rounded to {dtype}, later in training, alone"] = float(np.abs(moved).mean())
            later = rollout - self._logprobs(samples, self._as_is, _LATER)
            found["the whole difference then"] = float(np.abs(later).mean())
        return found


def _described(options: TrainerOptions) -> str:
    products = f", products in {options.autocast} (autocast)" if options.autocast else ""
    attention = f", attention {options.attn_implementation}" if options.attn_implementation else ""
    return f"weights in {options.dtype}{products}, head {options.head_dtype or 'as the rest'}{attention}"
