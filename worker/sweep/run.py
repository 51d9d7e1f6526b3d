"""Runs one kind of model in this process: ``python -m worker.sweep.run KIND refit|disk RESULT FOLDER``.

The result is written after every stage, so that a process that dies leaves how far it came.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.errors import words
from quirks_core.plan import RefusedError
from worker.audit.logprobs import Logprobs
from worker.audit.records import AuditError
from worker.errors import WorkerCallError
from worker.sweep import models
from worker.sweep.records import Run, Stage, Tokens
from worker.testing.lab import Generated, Lab, set_environment

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from worker.async_worker import VllmAsyncGenerationWorker

#: An engine whose core does the work of its only worker is up in half the time; its threads wait for no other process.
_LEAN: Mapping[str, Any] = {
    "engine": {"distributed_executor_backend": "uni"},
    "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one engine and writes its `worker.sweep.records.Run`."""
    parser = argparse.ArgumentParser(prog="python -m worker.sweep.run", description=__doc__)
    parser.add_argument("kind", choices=models.KINDS)
    parser.add_argument("weights", choices=("refit", "disk"), help="where the engine's weights come from")
    parser.add_argument("result", type=Path, help="file for the result, JSON")
    parser.add_argument("folder", type=Path, help="folder for the checkpoint")
    options = parser.parse_args(arguments)
    set_environment()
    notes = _Notes(options.result)
    try:
        asyncio.run(_run(options, notes))
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        traceback.print_exception(error)
        notes.say(error=words(error))


class _Notes:
    """The result as far as it is known."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._run = Run(stage=Stage.BUILD)

    def say(self, **values: Any) -> None:
        """Writes the result with some values changed; complete or not at all."""
        self._run = self._run.model_copy(update=values)
        temporary = self._file.with_suffix(".part")
        temporary.write_text(self._run.model_dump_json(), encoding="utf-8")
        temporary.replace(self._file)


async def _run(options: argparse.Namespace, notes: _Notes) -> None:
    notes.say(stage=Stage.BUILD)
    lab = Lab(options.folder)
    model = options.folder / options.kind
    if not (model / "tokenizer.json").exists():  # written last
        models.build(options.kind, model)
    trainer = lab.trainer(model)
    expected = lab.reference(trainer)
    notes.say(stage=Stage.PLAN, architecture=(trainer.config.architectures or [""])[0])
    values = {**_LEAN, "engine": {**_LEAN["engine"], **({"load_format": "auto"} if options.weights == "disk" else {})}}
    try:
        plan = lab.plan(model, values)
        notes.say(quirks=tuple(verdict.id for verdict in plan.active))
        notes.say(stage=Stage.START)
        async with lab.worker(model, values) as worker:
            notes.say(stage=Stage.FIRST)
            if options.weights == "disk":
                notes.say(first=await _tokens(lab, worker, trainer, expected))
                notes.say(layer=await _layer(worker, trainer), stage=Stage.DONE)
            else:
                await _refits(lab, worker, trainer, expected, notes)
    except RefusedError as error:
        refusing = {quirk.id for refusal in error.refusals for quirk in refusal.quirks}
        notes.say(stage=Stage.PLAN, refusals=tuple(sorted(refusing)), error=words(error))


async def _refits(
    lab: Lab, worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, expected: Sequence[Generated], notes: _Notes
) -> None:
    """Refits with the checkpoint's weights, with the same once more for the audit, and with other weights."""
    await worker.refit_async(trainer)
    notes.say(first=await _tokens(lab, worker, trainer, expected), stage=Stage.AUDIT)
    await _audit(worker, trainer, notes)
    notes.say(stage=Stage.SECOND)
    models.randomise(trainer, seed=1)
    await worker.refit_async(trainer)
    notes.say(second=await _tokens(lab, worker, trainer, lab.reference(trainer)), stage=Stage.DONE)


async def _audit(worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, notes: _Notes) -> None:
    """Compares what a refit leaves with what vLLM loads from the checkpoint, as `worker.audit.refit_audit` does."""
    from worker.audit import tensor_audit  # needs torch

    try:
        await worker.engine.call(tensor_audit.step, "poison")
        await worker.refit_async(trainer)
        answers = await worker.engine.call(tensor_audit.step, "compare")
        await worker.engine.call(tensor_audit.step, "release")
        notes.say(differs=tuple(sorted({row["name"] for answer in answers for row in answer})))
    except (AuditError, WorkerCallError) as error:
        notes.say(audit_error=words(error))


async def _layer(worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel) -> str:
    """Names the first layer whose output differs from transformers'; empty if none that can be compared does."""
    from worker.audit.disagreement import disagreement_of  # needs torch

    logprobs = Logprobs()
    try:
        await logprobs.take(worker, trainer.config.get_text_config().vocab_size)
        found = await disagreement_of(worker, trainer, logprobs)
    except (AuditError, WorkerCallError):
        return ""
    return (found.layer or "") if found else ""


async def _tokens(
    lab: Lab, worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, expected: Sequence[Generated]
) -> Tokens:
    """Generates greedily and counts the tokens that are transformers'."""
    got = await lab.greedy(worker)
    pairs = [pair for a, b in zip(got, expected, strict=True) for pair in zip(a.tokens, b.tokens, strict=True)]
    scored = lab.rescored(trainer, got)
    apart = [abs(a - b) for x, y in zip(got, scored, strict=True) for a, b in zip(x.logprobs, y.logprobs, strict=True)]
    largest = float(f"{max(apart):.1e}") if all(map(math.isfinite, apart)) else None
    return Tokens(equal=sum(a == b for a, b in pairs), total=len(pairs), logprobs=largest)


if __name__ == "__main__":
    main()
