"""A whole parity run: engine and trainer side by side, every scenario, then the ladder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quirks_core.errors import UsageError
from quirks_core.plan import Plan
from quirks_core.registry import Registry
from quirks_core.switches import Wishes
from worker import vllm_adapter
from worker.async_worker import VllmAsyncGenerationWorker
from worker.config import GenerationConfig
from worker.parity.engines import Engines
from worker.parity.ladder import Rung, attributions, climb, rungs
from worker.parity.measure import chosen, measure, rejudged
from worker.parity.prompts import Prompts, load_prompts
from worker.parity.records import ParityRecord, Report, Result, Step
from worker.parity.session import Session, Tell, planned_refits
from worker.parity.settings import changed
from worker.parity.store import Store
from worker.parity.thresholds import DEFAULT_PROFILE, chosen_thresholds
from worker.parity.trainer import Trainer, TrainerLoadError, TrainerOptions

#: Slots whose value in force the report shows.
_SHOWN = ("engine.", "refit.", "sampling.", "train.")
#: Under which name a run keeps what its engine said of itself.
_ENGINE = "engine"
#: Scenarios whose other side is the engine itself, so that no trainer's setting moves them.
_WITHOUT_TRAINER = frozenset({"decode-prefill"})


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and how.

    Attributes:
        scenarios: Names; all if empty.
        prompts: File with prompts; built-in ones if None.
        num_prompts: How many prompts to take at most.
        new_tokens: Tokens generated from each prompt.
        seed: Seed of the samples.
        profile: Name of the set of thresholds.
        thresholds: Further ones, as ``metric=limit``; they take the place of the profile's for that metric.
        epsilon: Ratios outside of 1 ± epsilon count as clipped.
        attribute: Change settings one at a time, and say which moves parity.
        settings: Settings to change; all that apply if empty.
        trainer_device: Where the trainer computes; a GPU if there is one, if None.
        disable: Names of quirks to turn off.
        force: Names of quirks to turn on.
    """

    scenarios: tuple[str, ...] = ()
    prompts: Path | None = None
    num_prompts: int | None = None
    new_tokens: int = 64
    seed: int = 0
    profile: str = DEFAULT_PROFILE
    thresholds: tuple[str, ...] = ()
    epsilon: float = 0.2
    attribute: bool = False
    settings: tuple[str, ...] = ()
    trainer_device: str | None = None
    disable: tuple[str, ...] = ()
    force: tuple[str, ...] = ()


async def run(config: GenerationConfig, options: Options, *, state: Path | None = None, tell: Tell = lambda _: None) -> Report:
    """Measures parity of a configuration.

    Args:
        config: The configuration of the rollout engine, and of the trainer under ``train``.
        options: What to measure.
        state: File that keeps what is finished, so that a second call goes on where the first was broken off.
        tell: Called with what comes next.

    Raises:
        UsageError: Something in configuration, prompts or options is wrong.
        RefusedError: The configuration cannot work.
        EngineStartError: The engine died while it started.
    """
    return await _Run(config, options, tell).report(state)


class EngineValues(ParityRecord):
    """What the engine of the user's configuration reported.

    Attributes:
        values: By slot.
        dtype: What it computes in, as ``bfloat16``.
    """

    values: dict[str, Any]
    dtype: str

    @classmethod
    def of(cls, session: Session) -> EngineValues:
        """Asks a running engine."""
        engine = session.worker.receipt.engine
        return cls(values={item.slot: item.engine for item in engine}, dtype=vllm_adapter.model_dtype(session.llm))


class _Run:
    """One run: the checks happen while it is made, before any engine starts."""

    def __init__(self, config: GenerationConfig, options: Options, tell: Tell) -> None:
        self._options = options
        self._tell = tell
        self._names = chosen(options.scenarios)
        self._thresholds = chosen_thresholds(options.profile, options.thresholds)
        self._warnings: list[str] = []
        self._wishes = Wishes(options.disable, options.force)
        self._device = options.trainer_device or _device()
        self._dtype: str | None = None  # the engine's
        self._trainer, self._config = self._load_trainer(config)
        self._worker = self._make_worker(self._config, self._wishes)
        self._registry = Registry.load()
        self._prompts = self._load_prompts()
        if longest := self.plan.value("engine.max_model_len"):  # else the engine says it
            self._prompts.check(longest, options.new_tokens)
        if options.attribute:
            self._rungs({})  # a setting that does not exist is found now

    @property
    def plan(self) -> Plan:
        """The plan of the user's configuration."""
        return self._worker.plan

    async def report(self, state: Path | None) -> Report:
        """Measures everything that an earlier run has not left in `state`."""
        store = Store(state, self._identity())
        if store.found:
            self._tell(f"going on where an earlier run stopped; {store.found} pieces are there")
        async with Engines(self._make_worker, self._make_session, self._tell) as engines:
            results = await self._baseline(engines, store)
            steps = await self._climb(engines, results, store) if self._options.attribute else []
        found = attributions(results, steps, self.plan, self._registry)
        engine = store.get(_ENGINE, EngineValues)
        context = self.plan.context
        return Report(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            model=context.model.name,
            model_type=context.model.model_type or "unknown",
            platform=context.platform or "unknown",
            versions=_versions(self.plan),
            settings={**(engine.values if engine else {}), **_settings(self.plan)},
            active_quirks=tuple(verdict.id for verdict in self.plan.active),
            plan=self.plan.digest,
            profile=self._options.profile,
            results=tuple(results),
            ladder=tuple(steps),
            attributions=found,
            warnings=tuple(dict.fromkeys((*self._warnings, *self._prompts.warnings, *self._worker.warnings))),
        )

    # ---- measuring

    async def _baseline(self, engines: Engines, store: Store) -> list[Result]:
        found = {name: self._judged(piece) for name in self._names if (piece := store.get(name, Result)) is not None}
        if missing := [name for name in self._names if name not in found]:
            session = await engines.session(self._config, self._wishes)
            store.put(_ENGINE, EngineValues.of(session))
            for result in await self._measure(session, missing, done=lambda result: store.put(result.scenario, result)):
                found[result.scenario] = result
        return [found[name] for name in self._names]

    async def _climb(self, engines: Engines, results: Sequence[Result], store: Store) -> list[Step]:
        before = {result.scenario: result for result in results}

        async def measured(rung: Rung, names: Sequence[str]) -> list[Result]:
            assert rung.plan is not None  # noqa: S101  # one without is not measured
            if rung.how == "rescore":
                return [await self._rescored(before[name], rung.plan) for name in names]
            if rung.how == "restart":
                return await self._measure(await engines.session(rung.config, rung.wishes), names)
            session = await engines.session(self._config, self._wishes)
            ours, session.refits = session.refits, planned_refits(rung.plan)
            session.forget_weights()
            try:
                return await self._measure(session, names)
            finally:
                session.refits = ours
                session.forget_weights()

        engine = store.get(_ENGINE, EngineValues)
        assert engine is not None  # noqa: S101  # the baseline has put it there
        self._dtype = engine.dtype
        found = self._rungs({**engine.values, "engine.dtype": engine.dtype})
        return await climb(found, results, measured, tell=self._tell, store=store)

    def _rungs(self, engine: Mapping[str, Any]) -> list[Rung]:
        only = self._options.settings
        return rungs(self._config, self.plan, only=only, registry=self._registry, wishes=self._wishes, engine=engine)

    async def _measure(self, session: Session, names: Sequence[str], **options: Any) -> list[Result]:
        return await measure(session, names, self._thresholds, epsilon=self._options.epsilon, tell=self._tell, **options)

    async def _rescored(self, result: Result, plan: Plan) -> Result:
        """Has the trainer score what the engine made already; only the trainer's side of the configuration differs."""
        if self._trainer is None or result.scenario in _WITHOUT_TRAINER or result.status != "measured":
            return result
        wanted = self._trainer_options(plan)
        bare = [sample.model_copy(update={"trainer": ()}) for sample in result.samples]
        samples = await asyncio.to_thread(self._trainer.score, bare, replace(wanted, dtype=wanted.dtype or self._dtype))
        return self._judged(result.model_copy(update={"samples": tuple(samples)}))

    def _judged(self, result: Result) -> Result:
        if result.status != "measured":
            return result
        options: dict[str, Any] = {"epsilon": self._options.epsilon, "decode": self._prompts.decode}
        return rejudged(result, result.samples, self._thresholds, **options)

    # ---- what it takes

    def _load_trainer(self, config: GenerationConfig) -> tuple[Trainer | None, GenerationConfig]:
        """Loads the trainer's model; without one the engine is compared with itself, and must load the checkpoint."""
        self._tell("loading the trainer's model")
        train = config.train
        options = TrainerOptions(train.dtype, train.attn_implementation, train.head_dtype, self._device)
        try:
            return Trainer.load(config.model.path, options, revision=config.model.revision), config
        except TrainerLoadError as error:
            self._warnings.append(f"{error}; only the scenarios that compare the engine with itself are run")
        if config.engine.load_format == "dummy":
            raise UsageError(
                f"engine.load_format is dummy, and {self._warnings[-1]}; nobody could give the engine its weights: "
                "set engine.load_format: auto"
            )
        return None, changed(config, {"engine.load_format": "auto"})

    def _trainer_options(self, plan: Plan) -> TrainerOptions:
        """How the trainer computes: as configured, and as quirks ask of it."""
        keys = ("dtype", "attn_implementation", "head_dtype")
        return TrainerOptions(**{key: plan.value(f"train.{key}") for key in keys}, device=self._device)

    def _make_worker(self, config: GenerationConfig, wishes: Wishes) -> VllmAsyncGenerationWorker:
        return VllmAsyncGenerationWorker(config, disable=wishes.disable, force=wishes.force)

    def _make_session(self, worker: VllmAsyncGenerationWorker) -> Session:
        session = Session(
            worker,
            self._trainer,
            self._trainer_options(worker.plan),
            self._prompts,
            new_tokens=self._options.new_tokens,
            seed=self._options.seed,
        )
        self._prompts.check(session.max_model_len, self._options.new_tokens)
        return session

    def _load_prompts(self) -> Prompts:
        model = self._config.model
        return load_prompts(
            model.path,
            tokenizer=model.tokenizer,
            revision=model.revision,
            vocab_size=_vocab_size(self.plan),
            file=self._options.prompts,
            count=self._options.num_prompts,
            seed=self._options.seed,
        )

    def _identity(self) -> dict[str, Any]:
        """Everything that decides what is measured; thresholds do not."""
        options = self._options
        return {
            "plan": self.plan.digest,
            "settings": _settings(self.plan),
            "config": self._config.model_dump(mode="json"),
            "versions": _versions(self.plan),
            "prompts": self._prompts.rows,
            "options": (options.new_tokens, options.seed, options.epsilon, options.trainer_device),
        }


def _settings(plan: Plan) -> dict[str, Any]:
    """The slots as in force."""
    values = {**plan.context.settings, **plan.changes}
    return {slot: value for slot, value in sorted(values.items()) if slot.startswith(_SHOWN)}


def _versions(plan: Plan) -> dict[str, str]:
    found = {name: text for name, text in plan.context.packages.items() if name in ("vllm", "torch", "transformers")}
    found["model-quirks"] = version("model-quirks")
    import torch

    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return dict(sorted(found.items()))


def _vocab_size(plan: Plan) -> int | None:
    found = plan.context.model.text_config.get("vocab_size")
    return found if isinstance(found, int) else None


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
