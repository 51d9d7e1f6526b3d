"""``make sweep``: tiny models of every decoder architecture through an engine and two refits; writes which of them are right.

Each engine runs in a process of its own, which is this script with ``engine KIND refit|disk RESULT FOLDER``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from quirks_core.base import child_process, whole_file
from quirks_core.base.errors import shortened, words
from quirks_core.base.record import Record
from quirks_core.facts.packages import installed_platform, installed_versions
from quirks_core.plan.records import RefusedError
from quirks_core.plugins.finder import discover
from quirks_core.reporting.terminal import Screen, line
from worker.errors import WorkerCallError
from worker.lab.audit.records import AuditError
from worker.lab.cli.display import stages
from worker.lab.kit import checkpoints
from worker.lab.kit.checkpoints import FURTHER, build, randomise
from worker.lab.kit.evidence_table import PACKAGES
from worker.lab.kit.lab import Generated, Lab, set_environment

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from worker.async_worker import VllmAsyncGenerationWorker

_SCRIPT = Path(__file__).resolve()
_EXPLAINED = _SCRIPT.with_suffix(".yaml")
KINDS = (*checkpoints.KINDS, *FURTHER)
#: Why rows are not right, by kind, as Markdown for a page in docs.
EXPLANATIONS: dict[str, str] = yaml.safe_load(_EXPLAINED.read_text(encoding="utf-8"))
#: An engine core that does the work of its only worker starts in half the time.
_LEAN: dict[str, Any] = {
    "engine": {"distributed_executor_backend": "uni"},
    "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"},
}
#: Seconds that one engine may take; most take 20 to 40 s on two CPU cores.
_TIMEOUT_S = 240.0
#: The end of a traceback.
_ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): .+)$", re.MULTILINE)
#: The part of an error that differs between two runs.
_PID = re.compile(r" \(pid \d+\)")
#: Characters of an error; its end says more than its beginning.
_MOST = 180


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

    @property
    def right(self) -> bool:
        """It ended without an error, and all that was compared is equal."""
        return self.stage is Stage.DONE and not self.differs and all(one.equal == one.total for one in self.tokens)

    @property
    def tokens(self) -> list[Tokens]:
        """What was generated: once or twice, if at all."""
        return [one for one in (self.first, self.second) if one]


class Verdict(StrEnum):
    """The result of a row."""

    RIGHT = "right"
    REFUSED = "refused"
    UNFINISHED = "not finished"
    NOT_BUILT = "not built"
    NO_START = "does not start"
    ERROR_FROM_DISK = "error, also from disk"
    OTHER_FROM_DISK = "other model, also from disk"
    REFIT_FAILS = "refit fails"
    REFIT_WRONG = "refit wrong"


_MEANINGS = {
    Verdict.RIGHT: "all tokens are transformers' after both refits, and the audit finds nothing",
    Verdict.REFUSED: "a quirk refuses the run before anything starts, and says why",
    Verdict.UNFINISHED: "it took too long, or was killed; the next sweep tries again",
    Verdict.NOT_BUILT: "transformers cannot make, save and load such a model",
    Verdict.NO_START: "the engine does not start; it says so with an error",
    Verdict.ERROR_FROM_DISK: "the engine starts and fails later, with and without refits; it says so with an error",
    Verdict.OTHER_FROM_DISK: "vLLM computes something else than transformers, without any refit; nothing says so",
    Verdict.REFIT_FAILS: "a refit fails with an error, where a load from disk is right",
    Verdict.REFIT_WRONG: "a refit leaves something wrong without an error, where a load from disk is right",
}


#: The verdicts on runs that failed before the engine was up.
_EARLY = {Stage.BUILD: Verdict.NOT_BUILT, Stage.PLAN: Verdict.REFUSED, Stage.START: Verdict.NO_START}


class Row(Record):
    """The result of one kind of model."""

    kind: str
    run: Run  #: an engine that starts from dummy weights and is refitted
    disk: Run | None = None  #: an engine that loads the checkpoint; None if it is not needed for the verdict
    seconds: float
    date: date
    depends: dict[str, str]  #: platform, versions by package, and a digest of the kind's configuration

    @property
    def verdict(self) -> Verdict:
        """The verdict; only a checkpoint that is right from disk blames the refit."""
        run, disk = self.run, self.disk
        if run.right:
            return Verdict.RIGHT
        if run.killed or (disk is not None and disk.killed):
            return Verdict.UNFINISHED
        if run.stage in _EARLY:
            return _EARLY[run.stage]
        if disk is not None and not disk.right:
            return Verdict.OTHER_FROM_DISK if disk.stage is Stage.DONE else Verdict.ERROR_FROM_DISK
        return Verdict.REFIT_WRONG if run.stage is Stage.DONE else Verdict.REFIT_FAILS

    @property
    def explanation(self) -> str:
        """Why it is not right, as Markdown; empty if that is not known."""
        refusal = f"Refused by {', '.join(map(_link, self.run.refusals))}." if self.verdict is Verdict.REFUSED else ""
        return EXPLANATIONS.get(self.kind, refusal)


class Sweep(Record):
    """The rows, by kind."""

    rows: tuple[Row, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Sweep:
        """Reads a sweep; an empty one if there is no file."""
        return cls.model_validate_json(file.read_bytes()) if file.exists() else cls()

    def with_row(self, row: Row) -> Sweep:
        """Returns a sweep with this row in place of an earlier one of its kind."""
        found = {one.kind: one for one in (*self.rows, row)}
        return Sweep(rows=tuple(found[kind] for kind in sorted(found)))

    def text(self) -> str:
        """Returns it as JSON, a line for each row."""
        rows = ",\n".join(row.model_dump_json(exclude_defaults=True) for row in self.rows)
        return f'{{"rows":[\n{rows}\n]}}\n'

    @property
    def unexplained(self) -> list[str]:
        """The kinds whose rows are neither right nor explained."""
        return [row.kind for row in self.rows if row.verdict is not Verdict.RIGHT and not row.explanation]


def dependencies(kind: str) -> dict[str, str]:
    """Returns what a row depends on: platform, versions by package, and a digest of the kind's configuration."""
    installed = installed_versions()
    values = json.dumps(FURTHER.get(kind), sort_keys=True)
    return {
        "platform": installed_platform() or "",
        "values": hashlib.sha256(values.encode()).hexdigest()[:16],
        **{name: installed.get(name, "") for name in PACKAGES},
    }


def make(kind: str, show: Callable[[str], None] = lambda _: None, *, timeout_s: float = _TIMEOUT_S) -> Row:
    """Makes the row of one kind: an engine that is refitted, and, unless that is right, one from disk to explain it."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quirks-sweep-") as folder:
        show(f"{kind}: refits")
        run = _run(kind, "refit", Path(folder), timeout_s)
        disk = None
        if not run.right and run.stage not in _EARLY:
            show(f"{kind}: from disk")
            disk = _run(kind, "disk", Path(folder), timeout_s)
    seconds, today = round(time.monotonic() - start), datetime.now(UTC).date()
    return Row(kind=kind, run=run, disk=disk, seconds=seconds, date=today, depends=dependencies(kind))


def _run(kind: str, weights: str, folder: Path, timeout_s: float) -> Run:
    """Runs one engine in a process group of its own, of which nothing is left running."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_QUIRKS_")}
    result, log = folder / f"{weights}.json", folder / f"{weights}.log"
    # -P: a folder called `worker` in the current folder must not hide ours.
    command = [sys.executable, "-P", str(_SCRIPT), "engine", kind, weights, str(result), str(folder)]
    with log.open("wb") as output:
        code = child_process.run(command, environ=environ, output=output, limit_s=timeout_s)
    run = Run.model_validate_json(result.read_bytes()) if result.exists() else Run(stage=Stage.BUILD)
    if run.stage is Stage.DONE or run.refusals:  # also of a process that hung, or died, on its way out
        return run
    error = run.error or (f"not done after {timeout_s:g} s" if code is None else f"ended with exit code {code}")
    # The engine's own error often reaches the driver as a mere "see above".
    cause = _ERROR.search(log.read_text(encoding="utf-8", errors="replace"))
    if cause is not None and cause[1].strip() not in error:
        error = f"{error.rstrip('.')}; first of all: {shortened(cause[1], 300)}"
    killed = code is None or -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    return run.model_copy(update={"error": _PID.sub("", error), "killed": killed})


_HEAD = """\
# Sweep

Made by `make sweep`; not edited by hand.
{versions}

Does a refit work for your architecture? Each row is a tiny random model of one kind: two layers, 64 wide, 512 tokens,
float32. An engine starts from dummy weights, eager and with all its quirks, takes the weights of a transformers
model, and generates {total} greedy tokens; then it takes other weights and generates again. An audit compares all
tensors and layers with those of the checkpoint as vLLM loads it. *Logprobs* is the largest difference to
transformers', in nats. If a result is wrong, a second engine loads the checkpoint from disk, which separates a broken
refit from a model that vLLM computes otherwise than transformers. A colon marks a variant of a model type.
Architectures that are not here have no class in transformers, are multimodal, or have no tiny configuration in
`worker/lab/kit/kinds.yaml` yet.{missing}

{count}

| verdict | rows | meaning |
|---|---:|---|
{verdicts}

Quirks in every plan, which the table leaves out: {common}."""


def markdown(sweep: Sweep) -> str:
    """Returns the page."""
    planned = [set(row.run.quirks) for row in sweep.rows if row.run.quirks]
    common = set.intersection(*planned) if planned else set()
    count = Counter(row.verdict for row in sweep.rows)
    missing = [kind for kind in KINDS if kind not in {row.kind for row in sweep.rows}]
    totals = [tokens.total for row in sweep.rows for tokens in row.run.tokens]
    head = _HEAD.format(
        versions="; ".join(dict.fromkeys(map(_versions, sweep.rows))) + ".",
        total=max(totals, default=0),
        missing=f" Not run yet: {', '.join(missing)}." if missing else "",
        count=f"{len(sweep.rows)} kinds, {count[Verdict.RIGHT]} right.",
        verdicts="\n".join(f"| {verdict} | {count[verdict]} | {_MEANINGS[verdict]} |" for verdict in Verdict if count[verdict]),
        common=", ".join(map(_link, sorted(common))) or "none",
    )
    lines = [
        head,
        "",
        "| kind | verdict | logprobs | quirks in the plan |",
        "|---|---|---:|---|",
        *(_line(row, common) for row in sweep.rows),
        "",
        "## What is not right, and why",
    ]
    for row in sweep.rows:
        if row.verdict is not Verdict.RIGHT:
            lines += ["", f"**{row.kind}** ({row.verdict}): {row.explanation or 'the cause is not known.'}", *_details(row)]
    return "\n".join(lines) + "\n"


def _versions(row: Row) -> str:
    versions = ", ".join(f"{name} {row.depends.get(name, '')}" for name in PACKAGES)
    return f"Platform {row.depends.get('platform', '')}: {versions}"


def _line(row: Row, common: set[str]) -> str:
    run = row.run
    apart = [tokens.logprobs for tokens in run.tokens]
    largest = "" if not apart else "NaN" if None in apart else f"{max(value for value in apart if value is not None):.0e}"
    cells = (row.kind, row.verdict, largest, ", ".join(map(_link, sorted(set(run.quirks) - common))))
    return f"| {' | '.join(cells)} |"


def _details(row: Row) -> Iterator[str]:
    """Yields errors, tensors that differ, and the result of the engine that loaded the checkpoint."""
    run, disk = row.run, row.disk
    found = [f"{run.stage}: {_code(run.error)}"] if run.error and not run.refusals else []
    if run.tokens:
        found.append(f"after the refits: {', '.join(map(str, run.tokens))}")
    found += [f"differs after a refit: {_code(', '.join(run.differs))}"] if run.differs else []
    found += [f"not audited: {_code(run.audit_error)}"] if run.audit_error else []
    if disk is not None and (not disk.error or disk.error != run.error):
        found.append(f"from disk: {_code(disk.error) if disk.error else disk.first}")
    yield from (f"- {text}" if index else f"\n- {text}" for index, text in enumerate(found))


def _link(quirk: str) -> str:
    module = _modules().get(quirk)
    return f"[{quirk}](../../{module.replace('.', '/')}.py)" if module else quirk


@cache
def _modules() -> dict[str, str]:
    """Returns the module of every declaration by the quirk's id."""
    return {item.name: item.module for item in discover()}


def _code(text: str) -> str:
    short = text if len(text) <= _MOST else f"{text[: _MOST // 3]} … {text[-_MOST * 2 // 3 :]}"
    return f"`{' '.join(short.replace('`', chr(39)).split())}`"


# ---- one engine, in a process of its own


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
                    self._note(first=await self._tokens(worker, trainer, expected), stage=Stage.DONE)
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
        randomise(trainer, seed=1)
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


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the rows that are missing or outdated, and writes the table after each; 1 if a wrong row is not explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--anew", action="store_true", help="also run the kinds that have a row with these versions")
    parser.add_argument("--render", action="store_true", help="run nothing; write the page from the recorded rows")
    parser.add_argument(
        "--docs", type=Path, default=Path("docs/results"), metavar="FOLDER", help="of sweep.json and sweep.md (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}")
    kinds, rows, page = options.kinds or KINDS, options.docs / "sweep.json", options.docs / "sweep.md"
    console, sweep = Screen(), Sweep.read(rows)
    with stages(console) as show:
        for kind in () if options.render else kinds:
            if is_recorded(kind, sweep) and not options.anew:
                continue
            row = make(kind, show)
            sweep = Sweep.read(rows).with_row(row)  # another sweep may have written meanwhile
            whole_file.write(rows, sweep.text())
            whole_file.write(page, markdown(sweep))
            colour = "green" if row.verdict is Verdict.RIGHT else "yellow"
            console.say(f"[{colour}]{row.verdict}[/] {line(kind)} ({row.seconds:.0f} s) {line(row.run.error)}".rstrip())
    whole_file.write(page, markdown(sweep))
    missing = [kind for kind in sweep.unexplained if kind in kinds]
    if missing:
        console.say(f"not explained ({_EXPLAINED.name}): {', '.join(missing)}")
    return 1 if missing else 0


def is_recorded(kind: str, sweep: Sweep) -> bool:
    """Whether a sweep has the row of a kind, made with what is installed."""
    found = (row for row in sweep.rows if row.kind == kind and row.verdict is not Verdict.UNFINISHED)
    return any(row.depends == dependencies(kind) for row in found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        _Engine(*sys.argv[2:]).run()
    else:
        sys.exit(main())
