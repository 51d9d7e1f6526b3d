"""Runs one engine of a sweep in this process: ``python -m worker.lab.sweep.engine KIND refit|disk RESULT FOLDER``."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import traceback
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from quirks_core.base import whole_file
from quirks_core.base.errors import words
from quirks_core.base.record import Record
from quirks_core.plan.records import RefusedError
from worker.errors import WorkerCallError
from worker.lab.audit.logprobs import Logprobs
from worker.lab.audit.records import AuditError
from worker.lab.kit import checkpoints
from worker.lab.kit.lab import Generated, Lab, set_environment

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from worker.async_worker import VllmAsyncGenerationWorker

_DATA: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("kinds.yaml").read_text(encoding="utf-8"))
#: Configurations that the kit does not have, by kind.
FURTHER = _DATA["kinds"]
KINDS: tuple[str, ...] = (*checkpoints.KINDS, *FURTHER)
#: Why rows are not right, by kind, as Markdown for a page in docs.
EXPLANATIONS: dict[str, str] = _DATA["explanations"]
#: An engine core that does the work of its only worker starts in half the time.
_LEAN: dict[str, Any] = {
    "engine": {"distributed_executor_backend": "uni"},
    "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"},
}


class Stage(StrEnum):
    """The stage that a run reached; a run that ended early failed in it."""

    BUILD = "build"
    PLAN = "plan"
    START = "start"
    FIRST = "first refit"
    AUDIT = "audit"
    SECOND = "second refit"
    DONE = "done"


class Tokens(Record):
    """Greedy tokens of the engine compared with those of transformers."""

    equal: int
    total: int
    #: largest difference between the logprobs of the engine's tokens and the trainer's of them, in nats; None if one is NaN
    logprobs: float | None = None

    def __str__(self) -> str:
        return f"{self.equal}/{self.total}"


class Run(Record):
    """One engine: the stage that it reached, and what it generated."""

    stage: Stage
    error: str = ""  #: why it ended before it was done
    killed: bool = False  #: it took too long, or was ended from outside
    architecture: str = ""  #: the class that the checkpoint names
    quirks: tuple[str, ...] = ()  #: active in the plan
    refusals: tuple[str, ...] = ()  #: quirks that refuse the run
    first: Tokens | None = None  #: after the first refit; from disk: after the start
    second: Tokens | None = None  #: after a refit of other weights
    differs: tuple[str, ...] | None = None  #: tensors and layers that a refit leaves other than a load; None: not compared
    audit_error: str = ""  #: why they were not compared
    layer: str = ""  #: from disk: the first layer whose output differs from transformers'; empty if none was found

    @property
    def right(self) -> bool:
        """It ended without an error, and all that was compared is equal."""
        return self.stage is Stage.DONE and not self.differs and all(one.equal == one.total for one in self.tokens)

    @property
    def tokens(self) -> list[Tokens]:
        """What was generated: once or twice, if at all."""
        return [one for one in (self.first, self.second) if one]


def build(kind: str, folder: Path) -> Path:
    """Writes a tiny random checkpoint (seed 0) with its tokenizer, as `worker.lab.kit.checkpoints.build` does.

    Raises:
        Exception: Whatever transformers raises if it cannot make such a model.
    """
    if kind in checkpoints.KINDS:
        return checkpoints.build(kind, folder)
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    # The kit's own parts, although they are private: a change of that module would make recorded evidence outdated.
    values = {**checkpoints._SHARED, **FURTHER[kind]}
    written = values.pop("config.json", {})
    config = CONFIG_MAPPING[kind.partition(":")[0]](**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    _randomise(model.eval(), 0)
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **written}, indent=2), encoding="utf-8")
    checkpoints._write_tokenizer(folder)
    return folder


def _randomise(model: PreTrainedModel, seed: int) -> None:
    """Draws every floating tensor of a state dict, in place and in order of name."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(checkpoints._draw(name, tensor, generator))


class _Engine:
    """One engine of one kind; its result is written after every stage, so that it survives a crash.

    Args:
        kind: One of `KINDS`.
        weights: ``refit`` for dummy weights that are refitted, or ``disk``.
        result: File for the `Run`.
        folder: Folder for checkpoints.
    """

    def __init__(self, kind: str, weights: str, result: str, folder: str) -> None:
        self._kind, self._from_disk, self._result, self._folder = kind, weights == "disk", Path(result), Path(folder)
        self._lab = Lab(self._folder)
        self._run = Run(stage=Stage.BUILD)

    def run(self) -> None:
        """Runs it to its end or to its first error."""
        set_environment()
        try:
            asyncio.run(self._start())
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            traceback.print_exception(error)
            self._note(error=words(error))

    def _note(self, **values: Any) -> None:
        self._run = self._run.model_copy(update=values)
        whole_file.write(self._result, self._run.model_dump_json())

    async def _start(self) -> None:
        model = self._folder / self._kind
        if not (model / "tokenizer.json").exists():  # written last
            build(self._kind, model)
        trainer = self._lab.trainer(model)
        expected = self._lab.reference(trainer)
        self._note(stage=Stage.PLAN, architecture=(trainer.config.architectures or [""])[0])
        values = {**_LEAN, "engine": {**_LEAN["engine"], **({"load_format": "auto"} if self._from_disk else {})}}
        try:
            self._note(quirks=tuple(verdict.id for verdict in self._lab.plan(model, values).active))
            self._note(stage=Stage.START)
            async with self._lab.worker(model, values) as worker:
                self._note(stage=Stage.FIRST)
                if self._from_disk:
                    self._note(first=await self._tokens(worker, trainer, expected))
                    self._note(layer=await _layer(worker, trainer), stage=Stage.DONE)
                else:
                    await self._refit(worker, trainer, expected)
        except RefusedError as error:
            refusing = {quirk.id for refusal in error.refusals for quirk in refusal.quirks}
            self._note(stage=Stage.PLAN, refusals=tuple(sorted(refusing)), error=words(error))

    async def _refit(self, worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, expected: Sequence[Generated]) -> None:
        """Refits with the checkpoint's weights, with the same again for the audit, and with other weights."""
        await worker.refit_async(trainer)
        self._note(first=await self._tokens(worker, trainer, expected), stage=Stage.AUDIT)
        await self._audit(worker, trainer)
        self._note(stage=Stage.SECOND)
        _randomise(trainer, seed=1)
        await worker.refit_async(trainer)
        self._note(second=await self._tokens(worker, trainer, self._lab.reference(trainer)), stage=Stage.DONE)

    async def _audit(self, worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel) -> None:
        from worker.lab.audit import tensor_audit  # needs torch

        try:
            await worker.engine.call(tensor_audit.step, "poison")
            await worker.refit_async(trainer)
            answers = await worker.engine.call(tensor_audit.step, "compare")
            await worker.engine.call(tensor_audit.step, "release")
            self._note(differs=tuple(sorted({row["name"] for answer in answers for row in answer})))
        except (AuditError, WorkerCallError) as error:
            self._note(audit_error=words(error))

    async def _tokens(
        self, worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, expected: Sequence[Generated]
    ) -> Tokens:
        got = await self._lab.greedy(worker)
        pairs = [pair for a, b in zip(got, expected, strict=True) for pair in zip(a.tokens, b.tokens, strict=True)]
        scored = self._lab.rescored(trainer, got)
        apart = [abs(a - b) for x, y in zip(got, scored, strict=True) for a, b in zip(x.logprobs, y.logprobs, strict=True)]
        largest = float(f"{max(apart):.1e}") if all(map(math.isfinite, apart)) else None
        return Tokens(equal=sum(a == b for a, b in pairs), total=len(pairs), logprobs=largest)


async def _layer(worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel) -> str:
    """Names the first layer whose output differs from transformers'; empty if no comparable one does."""
    from worker.lab.audit.disagreement import disagreement_of  # needs torch

    logprobs = Logprobs()
    try:
        await logprobs.take(worker, trainer.config.get_text_config().vocab_size)
        found = await disagreement_of(worker, trainer, logprobs)
    except (AuditError, WorkerCallError):
        return ""
    return (found.layer or "") if found else ""


if __name__ == "__main__":
    _Engine(*sys.argv[1:]).run()
