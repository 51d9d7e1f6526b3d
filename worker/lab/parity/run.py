"""A parity run: engine and trainer side by side, every scenario, and the report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from quirks_core.apply.read_back import read_configuration
from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import slot_named
from quirks_core.plan.records import Plan
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry
from worker.async_worker import VllmAsyncGenerationWorker
from worker.engine import vllm_adapter
from worker.lab.parity.measure import WITHOUT_TRAINER, Judge, chosen, measure
from worker.lab.parity.prompts import load_prompts
from worker.lab.parity.records import Attribution, Notify, Report, Result, Step
from worker.lab.parity.session import Session, running
from worker.lab.parity.thresholds import DEFAULT_PROFILE, chosen_thresholds
from worker.lab.parity.trainer import Trainer, TrainerLoadError, TrainerOptions

#: Slots whose value in force the report shows.
_SHOWN = ("engine", "refit", "sampling", "train")


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and how."""

    scenarios: tuple[str, ...] = ()  #: names; all if empty
    prompts: Path | None = None  #: file with prompts; built-in ones if None
    new_tokens: int = 64  #: tokens generated from each prompt
    seed: int = 0  #: seed of the samples
    profile: str = DEFAULT_PROFILE  #: name of the set of thresholds
    thresholds: tuple[str, ...] = ()  #: further ones, as ``metric=limit``; they replace the profile's for that metric
    planning: PlanOptions = field(default_factory=PlanOptions)  #: plan options


async def run(config: GenerationConfig, options: Options, *, notify: Notify = lambda _: None) -> Report:
    """Measures parity of a configuration; `worker.lab.attribution.run` also finds the settings that affect it.

    Raises:
        UsageError: Something in configuration, prompts or options is wrong.
        RefusedError: The configuration cannot work.
        EngineStartError: The engine died while it started.
    """
    parity = ParityRun(config, options, notify=notify)
    return parity.report(await parity.baseline())


class ParityRun:
    """One run. The constructor checks everything, before any engine starts; one engine runs at a time.

    Attributes:
        config: The configuration; its engine loads the checkpoint if there is no trainer's model.
        plan: The plan for it.
        registry: The quirks.
        reported: After the baseline, the values that the engine of the user's configuration reported, by slot.
        dtype: Likewise its dtype, such as ``bfloat16``.
    """

    def __init__(self, config: GenerationConfig, options: Options, *, notify: Notify = lambda _: None) -> None:
        """Checks everything; see `run` for arguments and errors."""
        self._options = options
        self._notify = notify
        self._names = chosen(options.scenarios)
        self._thresholds = chosen_thresholds(options.profile, options.thresholds)
        self._warnings: list[str] = []
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._trainer, self.config = self._load_trainer(config)
        worker = VllmAsyncGenerationWorker(self.config, options=options.planning)
        self.registry = Registry.load(strict=options.planning.strict)  # also what is switched off, which may be the cause
        self.plan = make_plan(self.config, options.planning, registry=self.registry)
        self._prompts = load_prompts(self.config.model, file=options.prompts)
        if longest := self.plan.value("engine.max_model_len"):  # otherwise the engine reports it
            self._prompts.check(longest, options.new_tokens)
        self._warnings += worker.warnings
        self.reported: dict[str, Any] = {}
        self.dtype = "auto"

    # ---- measuring

    async def baseline(self) -> list[Result]:
        """Measures the scenarios with the user's configuration."""
        async with self._engine_of(self.config, self._options.planning) as session:
            plan = session.worker.plan
            self.reported = read_configuration(session.llm.vllm_config, {*plan.context.settings, *plan.changes})
            self.dtype = vllm_adapter.model_dtype(session.llm)
            return await measure(session, self._names, self._thresholds, notify=self._notify)

    async def on_another_engine(self, config: GenerationConfig, planning: PlanOptions, names: Sequence[str]) -> list[Result]:
        """Measures scenarios on an engine of another configuration."""
        async with self._engine_of(config, planning) as session:
            return await measure(session, names, self._thresholds, notify=self._notify)

    async def rescored(self, results: Iterable[Result], plan: Plan) -> list[Result]:
        """Has the trainer, configured by another plan, score the samples that the engine has generated already."""
        return [await asyncio.to_thread(self._rescored, result, plan) for result in results]

    def report(self, results: Sequence[Result], steps: Sequence[Step] = (), attributions: Sequence[Attribution] = ()) -> Report:
        """Builds the report."""
        context = self.plan.context
        return Report(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            model=context.model.name,
            model_type=context.model.model_type or "unknown",
            platform=context.platform or "unknown",
            versions=_versions(self.plan),
            settings={**self.reported, **_settings(self.plan)},
            active_quirks=tuple(verdict.id for verdict in self.plan.active),
            plan=self.plan.digest,
            profile=self._options.profile,
            results=tuple(results),
            steps=tuple(steps),
            attributions=tuple(attributions),
            warnings=tuple(dict.fromkeys(self._warnings)),
        )

    def _rescored(self, result: Result, plan: Plan) -> Result:
        if self._trainer is None or result.scenario in WITHOUT_TRAINER or result.status != "measured":
            return result
        options = self._trainer_options(plan)
        options = replace(options, dtype=options.dtype or self.dtype)
        judge = Judge(self._thresholds, self._prompts.decode, self._trainer, options, self.dtype)
        return judge.judged(result, self._trainer.score(result.samples, options))

    # ---- engine and trainer

    @asynccontextmanager
    async def _engine_of(self, config: GenerationConfig, planning: PlanOptions) -> AsyncIterator[Session]:
        worker = VllmAsyncGenerationWorker(config, options=planning)
        self._notify("starting an engine")
        async with running(worker):
            made = {"new_tokens": self._options.new_tokens, "seed": self._options.seed}
            session = Session(worker, self._trainer, self._trainer_options(worker.plan), self._prompts, **made)
            self._prompts.check(session.max_model_len, self._options.new_tokens)
            yield session

    def _load_trainer(self, config: GenerationConfig) -> tuple[Trainer | None, GenerationConfig]:
        """Loads the trainer's model; without one the engine is compared with itself, and must load the checkpoint."""
        self._notify("loading the trainer's model")
        train = config.train
        options = TrainerOptions(train.dtype, train.attn_implementation, train.head_dtype, self._device, train.autocast)
        try:
            return Trainer.load(config.model.path, options, revision=config.model.revision), config
        except TrainerLoadError as error:
            if config.engine.load_format == "dummy":
                raise UsageError(
                    f"engine.load_format is dummy, and {error}; the engine would get no weights: set engine.load_format: auto"
                ) from error
            self._warnings.append(f"{error}; only the scenarios that compare the engine with itself are run")
        return None, config.overridden({"engine.load_format": "auto"})

    def _trainer_options(self, plan: Plan) -> TrainerOptions:
        keys = ("dtype", "attn_implementation", "head_dtype", "autocast")
        return TrainerOptions(**{key: plan.value(f"train.{key}") for key in keys}, device=self._device)


def _settings(plan: Plan) -> dict[str, Any]:
    values = {**plan.context.settings, **plan.changes}
    return {slot: value for slot, value in sorted(values.items()) if slot_named(slot).family in _SHOWN}


def _versions(plan: Plan) -> dict[str, str]:
    found = {name: text for name, text in plan.context.packages.items() if name in ("vllm", "torch", "transformers")}
    found["model-quirks"] = version("model-quirks")
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return dict(sorted(found.items()))
