"""Measures every pair of dtypes that an engine and a trainer can have: what it leaves of their difference, and what it costs.

Each engine generates its own rollouts; when the last one has ended, each trainer scores all of them.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from quirks_core.base.errors import QuirksError, UsageError, words
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plugins.planning import PlanOptions
from worker.async_worker import VllmAsyncGenerationWorker
from worker.engine import vllm_adapter
from worker.lab.parity.frontier import FLOAT16, FLOAT32, LARGEST, SMALLEST, TARGET, Frontier, Pair, Range, Side
from worker.lab.parity.metrics import measured
from worker.lab.parity.prompts import Prompts, load_prompts
from worker.lab.parity.records import Notify, Sample
from worker.lab.parity.scoring import logprobs, step
from worker.lab.parity.session import Session, running
from worker.lab.parity.trainer import TrainerOptions, load_model

_SHORT = ("bfloat16", FLOAT16)
_LAYER = re.compile(r"(.*?\.\d+)(?:\.|$)")
_PACKAGES = ("vllm", "torch", "transformers")


class Explain:
    """One measurement; `run` makes it."""

    def __init__(
        self,
        config: GenerationConfig,
        planning: PlanOptions,
        *,
        prompts: Path | None = None,
        new_tokens: int = 64,
        seed: int = 0,
        target: float = TARGET,
        notify: Notify = lambda _: None,
    ) -> None:
        """Checks everything that needs no engine, and loads the trainer's model.

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
        self._tokens, self._seed, self._target = new_tokens, seed, target
        self._config = config.overridden({"engine.load_format": "auto"})
        self._prompts: Prompts = load_prompts(config.model, file=prompts)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        head = FLOAT32 if train.head_dtype == FLOAT32 else None
        self._as_is = TrainerOptions(train.dtype, train.attn_implementation, head, "cpu", train.autocast)
        notify("loading the trainer's model")
        self._model = self._loaded(replace(self._as_is, dtype=FLOAT32))  # on the device when the engines have left it

    async def run(self) -> Frontier:
        """Starts one engine after the other, then scores.

        Raises:
            RefusedError, EngineStartError: The engine as it is cannot work or does not start.
        """
        made = [await self._rollouts({})]
        own = made[0][0]
        for dtype, head in [*((short, head) for short in _SHORT for head in (short, FLOAT32)), (FLOAT32, FLOAT32)]:
            if (dtype, head) == (own.dtype, own.head):
                continue
            try:
                changes = {"engine.dtype": dtype, "engine.head_dtype": head if head != dtype else None}
                made.append(await self._rollouts(changes))
            except QuirksError as error:
                failed = Side(side="engine", dtype=dtype, head=head, weights=dtype, failed=words(error))
                made.append((failed, ()))
        return self._scored(made)

    async def _rollouts(self, changes: dict[str, Any]) -> tuple[Side, Sequence[Sample]]:
        """Has an engine with some settings changed generate, twice: its first requests compile."""
        self._notify(f"starting an engine{''.join(f', {slot}={value}' for slot, value in changes.items() if value)}")
        worker = VllmAsyncGenerationWorker(self._config.adjusted(changes), options=self._planning)
        async with running(worker):
            session = Session(worker, None, self._as_is, self._prompts, new_tokens=self._tokens, seed=self._seed)
            self._prompts.check(session.max_model_len, self._tokens)
            self._notify("generating")
            await session.generate()
            await worker.reset_prefix_cache_async()
            begun = time.perf_counter()
            samples, _ = await session.generate()
            seconds = time.perf_counter() - begun
            answers = await worker.engine.call(held, sum(len(row.prompt) + len(row.tokens) for row in samples))
            dtype = vllm_adapter.model_dtype(session.llm)
            head = FLOAT32 if worker.config.engine.head_dtype == FLOAT32 else dtype
            memory, cache = (sum(column) for column in zip(*answers, strict=True))
            cost = {"memory": memory / 1e9, "kv_bytes": cache, "seconds": _of_1000(seconds, samples)}
            return Side(side="engine", dtype=dtype, head=head, weights=dtype, **cost), samples

    # ---- the trainer

    def _loaded(self, options: TrainerOptions) -> Any:
        return load_model(self._config.model.path, self._config.model.revision, options, str(options.dtype))

    def _trainers(self) -> list[TrainerOptions]:
        """The trainer as it is; float32 weights under autocast and alone; whole weights in 16 bits if they are the user's."""
        master = replace(self._as_is, dtype=FLOAT32, head_dtype=None)
        found = [replace(master, autocast=dtype, head_dtype=head) for dtype in _SHORT for head in (None, FLOAT32)]
        if self._as_is.dtype in _SHORT and not self._as_is.autocast:
            found += [replace(self._as_is, dtype=dtype) for dtype in _SHORT]
        alone = replace(master, autocast=None)
        own = alone if (self._as_is.dtype, self._as_is.autocast) == (FLOAT32, None) else self._as_is
        return list(dict.fromkeys((own, *found, alone)))

    def _scored(self, made: Sequence[tuple[Side, Sequence[Sample]]]) -> Frontier:
        own, samples = made[0]
        self._notify("reading the range of weights and activations")
        self._model = self._model.to(self._device)
        found = range_of(self._model, samples)
        trainers: dict[TrainerOptions, Side] = {}
        pairs = []
        for options in sorted(self._trainers(), key=lambda options: options.dtype != FLOAT32):  # theirs is loaded
            if options.dtype != FLOAT32:
                self._model = None  # frees its memory first
                self._model = self._loaded(options).to(self._device)
            trainer = trainers[options] = self._cost_of(options, samples)
            self._notify(f"scoring with the trainer, {trainer.name}")
            scores = iter(logprobs(self._model, [sample for _, rows in made for sample in rows], **options.arithmetic))
            for engine, rows in made:
                if rows:
                    both = [sample.model_copy(update={"trainer": next(scores)}) for sample in rows]
                    pairs.append(_pair(engine, trainer, both))
        context = VllmAsyncGenerationWorker(self._config, options=self._planning).plan.context
        now = own, trainers[self._trainers()[0]]
        return Frontier(
            model=context.model.name,
            device=torch.cuda.get_device_name() if self._device != "cpu" else "cpu",
            temperature=samples[0].scoring.temperature,
            tokens=sum(len(sample.tokens) for sample in samples),
            target=self._target,
            engines=tuple(engine for engine, _ in made),
            trainers=tuple(trainers.values()),
            pairs=tuple(sorted(pairs, key=lambda pair: (pair.engine, pair.trainer) != now)),
            range=found,
            versions={name: text for name, text in context.packages.items() if name in _PACKAGES},
        )

    def _cost_of(self, options: TrainerOptions, samples: Sequence[Sample]) -> Side:
        """Measures a training step: over all samples on a GPU, over one on a CPU, where it takes seconds."""
        rows = samples if self._device != "cpu" else samples[:1]
        seconds, memory = step(self._model, rows, **options.arithmetic)
        dtype = str(options.autocast or options.dtype)
        cost = {"seconds": _of_1000(seconds, rows, prompts=True), "memory": memory / 1e9}
        return Side(side="trainer", dtype=dtype, head=options.head_dtype or dtype, weights=str(options.dtype), **cost)


def range_of(model: torch.nn.Module, samples: Sequence[Sample]) -> Range:
    """Reads the largest activations of a model on samples, and its weights that float16 cannot hold."""
    with _largest_activations(model) as layers:
        for sample in samples:  # alone: padding is no text
            logprobs(model, [sample])
    beyond = below = 0
    for weight in model.parameters():
        size = weight.detach().abs()
        beyond += int((size > LARGEST).sum())
        below += int(((size > 0) & (size < SMALLEST)).sum())
    return Range(layers=layers, beyond=beyond, below=below, weights=sum(row.numel() for row in model.parameters()))


def _of_1000(seconds: float, samples: Sequence[Sample], *, prompts: bool = False) -> float:
    return 1000 * seconds / sum(len(sample.tokens) + prompts * len(sample.prompt) for sample in samples)


def _pair(engine: Side, trainer: Side, samples: Sequence[Sample]) -> Pair:
    found = measured(samples).metrics
    sizes = {name: found[name] for name in ("mean_abs_delta", "max_abs_delta", "kl_k3")}
    return Pair(engine=engine, trainer=trainer, nonfinite=int(found["nonfinite"]), **sizes)


@contextmanager
def _largest_activations(model: torch.nn.Module) -> Iterator[dict[str, float]]:
    """Yields the largest absolute value by layer that went into a module or came out of one meanwhile; NaN counts as such."""
    found: dict[str, float] = defaultdict(float)

    def hook(name: str) -> Any:
        def look(_: torch.nn.Module, inputs: Any, output: Any) -> None:
            for value in (*inputs, *(output if isinstance(output, tuple | list) else (output,))):
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                    largest = float(torch.linalg.vector_norm(value, torch.inf))
                    found[name] = largest if not largest <= found[name] else found[name]

        return look

    layers = {name: match[1] if (match := _LAYER.match(name)) else name for name, _ in model.named_modules()}
    looked_at = [(name, module) for name, module in model.named_modules() if layers[name] == name or not [*module.children()]]
    handles = [module.register_forward_hook(hook(layers[name])) for name, module in looked_at]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def held(worker: Any, tokens: int) -> tuple[int, float]:
    """Returns the bytes of weights and of the KV cache of some tokens, and the cache's bytes for a token (`Engine.call`).

    A CPU's kernels pack weights where no tensor shows them; there the first is the resident memory of the process.
    """
    runner, config = worker.model_runner, worker.vllm_config.cache_config
    storages = [tensor.untyped_storage() for tensor in tree_leaves(runner.kv_caches)]
    caches = {storage.data_ptr(): storage.nbytes() for storage in storages}
    of_a_token = sum(caches.values()) / (config.num_gpu_blocks * config.block_size)
    if torch.device(worker.device).type == "cpu":
        import psutil

        return psutil.Process().memory_info().rss, of_a_token
    return int(runner.model_memory_usage + of_a_token * tokens), of_a_token
