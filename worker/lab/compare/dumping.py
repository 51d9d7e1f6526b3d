"""Makes a dump with a running engine, or with one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from quirks_core.base.json_values import sha256
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plugins.planning import PlanOptions
from worker.async_worker import VllmAsyncGenerationWorker
from worker.lab.compare.dump import Dump, Row, Sequences, digest
from worker.lab.compare.effective import effective, versions
from worker.lab.kit.lab import generated
from worker.lab.parity.records import Notify
from worker.lab.parity.session import prefilled, running

#: Sampled rows of each prompt; none where the configured temperature is 0.
_SAMPLES = 2


async def dump_of(
    config: GenerationConfig,
    planning: PlanOptions,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    seed: int = 0,
    tokens_of: Iterable[Sequences] = (),
    notify: Notify = lambda _: None,
) -> Dump:
    """Starts an engine that loads the checkpoint, unless the user typed another load format, and makes its dump.

    Raises:
        QuirksError: The configuration is refused, or the engine does not start or dies.
    """
    # That of a rollout would wait for a trainer's weights.
    load_format = {} if config.engine.load_format else {"engine.load_format": "auto"}
    prepared = config.overridden({**load_format, "sampling.max_new_tokens": new_tokens})
    worker = VllmAsyncGenerationWorker(prepared, options=planning)
    notify("starting the engine")
    async with running(worker):
        found = await dump(worker, prompts, seed=seed, tokens_of=tokens_of, notify=notify)
        notify("stopping the engine")
    return found


async def dump(
    worker: VllmAsyncGenerationWorker,
    prompts: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    tokens_of: Iterable[Sequences] = (),
    notify: Notify = lambda _: None,
) -> Dump:
    """Has a running engine generate from prompts, greedily and sampled as configured, and score what it generated.

    It scores the sequences of other dumps as well. Each sampled row has a seed of its own, counted up from the given one, so
    that it does not depend on other requests.

    Raises:
        BatchError: There is no prompt, or one is empty or does not fit the context.
        EngineDiedError: A process of the engine died.
    """
    sampling, plan, model = worker.config.sampling, worker.plan, worker.plan.context.model
    ids = tuple(tuple(map(int, row)) for row in prompts)
    notify("generating greedily")
    made = await generated(worker, ids, greedy=True)
    rows = [Row(kind="greedy", prompt=index, **asdict(row)) for index, row in enumerate(made)]
    if sampling.temperature > 0:
        notify(f"sampling at temperature {sampling.temperature:g}")
        numbers, seeds = [n // _SAMPLES for n in range(len(ids) * _SAMPLES)], range(seed, seed + len(ids) * _SAMPLES)
        made = await generated(worker, [ids[number] for number in numbers], seeds=seeds)
        drawn = zip(numbers, seeds, made, strict=True)
        rows += [Row(kind="sampled", prompt=number, seed=own, **asdict(row)) for number, own, row in drawn]
    scored: dict[str, tuple[tuple[float, ...], ...]] = {}
    for sequences in ([(ids[row.prompt], row.tokens) for row in rows], *tokens_of):
        if (name := digest(sequences)) not in scored:
            notify("scoring the other engine's tokens" if scored else "scoring its own tokens")
            scored[name] = tuple(await prefilled(worker, sequences))
    slots = {slot: plan.value(slot) for slot in plan.context.settings.keys() | plan.changes.keys()}
    settings = {f"sampling.{name}": value for name, value in sampling.model_dump(mode="json").items()}
    return Dump(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        model_type=str(model.config.get("model_type", "")),
        config_digest=sha256(model.config),
        platform=plan.context.platform or "",
        versions=versions(),
        plan=plan.digest,
        quirks=tuple(verdict.id for verdict in plan.active),
        settings=dict(sorted({**slots, **settings}.items())),
        effective=effective(worker.engine.llm.vllm_config),
        prompts=ids,
        receipt=worker.receipt,
        rows=tuple(rows),
        scored=scored,
    )
