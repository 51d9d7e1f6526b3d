"""The commonest runs, their plans, and the page that is made of what was measured (`runs.py`)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum, auto
from functools import cache
from pathlib import Path
from typing import Any

from quirks_core.base.record import Record
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.serve_command import read_serve_command
from quirks_core.configuration.slots import slot_named
from quirks_core.plan.records import Plan, Status
from quirks_core.plugins.finder import discover
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry

#: The folder of the documentation with ``runs.json`` and ``runs.md``.
DOCS = Path(__file__).parents[1] / "docs" / "results"
#: What was measured, by platform.
FILES = {"cpu": "runs.json", "cuda": "runs-cuda.json"}
#: The checkpoint that is no kind of `worker.lab.kit.checkpoints`.
TRAINED = "SmolLM2-135M"
#: What MODEL_QUIRKS_SET has for float32 on both sides.
FLOAT32 = "engine.dtype=float32;train.dtype=float32;train.autocast=null"


class Update(StrEnum):
    """How weights reach the engine."""

    EACH = auto()  #: TRL's colocate mode: ``load_weights`` of one tensor after the other
    RELOAD = auto()  #: TRL's server: vLLM's own weight transfer, which reloads layer by layer; without its NCCL here
    BUCKET = auto()  #: verl: ``load_weights`` of a bucket of tensors, then vLLM's processing after loading


class Run(Record):
    """One of the runs.

    Attributes:
        name: What one does.
        model: `TRAINED`, or a kind of tiny checkpoint.
        command: The command line of a server with the same engine, without the model: what `quirks plan` reads.
        given: What the trainer's preset says of its weight updates, and what the user says, by slot.
        purpose: Of the engine.
        trainer: Whose facts and numerics are used; empty if no trainer is there.
        update: How its weights reach the engine.
        temperature: Of the samples.
        source: Where the engine's arguments were read.
        by_quirk: Whether it is also measured without each of its quirks.
    """

    name: str
    model: str = TRAINED
    command: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    purpose: str = "rollout"
    trainer: str = ""
    update: Update = Update.EACH
    temperature: float = 1.0
    source: str = ""
    by_quirk: bool = False


_TRL = {
    "command": ("--distributed-executor-backend", "external_launcher", "--max-num-batched-tokens", "4096",
                "--logprobs-mode", "processed_logprobs"),
    "given": ("refit.scope=parameters", "refit.clear_cache=true"),
    "trainer": "trl",
    "source": "TRL 1.16, `trl/generation/vllm_generation.py`",
}  # fmt: skip
_TRL_SERVER = {
    **_TRL,
    "command": ("--dtype", "auto", "--kv-cache-dtype", "auto", "--weight-transfer-config", '{"backend": "nccl"}',
                "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"),
    "update": Update.RELOAD,
    "source": "TRL 1.16, `trl/scripts/vllm_serve.py`",
}  # fmt: skip
_VERL = {
    "command": ("--dtype", "bfloat16", "--load-format", "dummy", "--distributed-executor-backend", "mp",
                "--max-num-seqs", "256", "--enable-chunked-prefill", "--max-num-batched-tokens", "8192",
                "--enable-prefix-caching", "--logprobs-mode", "processed_logprobs"),
    "given": ("refit.scope=state_dict", "refit.clear_cache=true"),
    "trainer": "verl",
    "update": Update.BUCKET,
    "source": "verl 1dda039, `verl/workers/rollout/vllm_rollout/vllm_async_server.py`",
}  # fmt: skip
_FAMILIES = {"Qwen3": "qwen3", "Qwen3-MoE": "qwen3_moe", "Llama-3": "llama", "Gemma-3": "gemma3", "gpt-oss": "gpt_oss"}
RUNS = (
    Run(name="TRL colocate", by_quirk=True, **_TRL),
    Run(name="TRL colocate, LoRA", **_TRL),
    Run(name="TRL server", **_TRL_SERVER),
    Run(name="verl", **_VERL),
    Run(name="vllm serve for agents", purpose="serve", temperature=0.7, command=("--enable-prefix-caching",)),
    Run(name="LLM() for evaluation", purpose="eval", temperature=0.0),
    *(Run(name=f"TRL colocate, {name}", model=kind, **_TRL) for name, kind in _FAMILIES.items()),
    Run(name="TRL colocate, DeepSeek", model="deepseek_v3", **_TRL),
)


class Planned(Record):
    """What a plan does."""

    applied: tuple[str, ...]  #: quirks in force in the engine
    advised: tuple[str, ...]  #: quirks whose setting only the trainer or the client can make
    already: tuple[str, ...] = ()  #: quirks whose value the program sets itself
    refused: tuple[str, ...] = ()  #: why the run does not start


class Measured(Record):
    """One engine; figures in nats."""

    error: str = ""  #: why there are no figures
    mean: float | None = None  #: mean |rollout - trainer|; None without a trainer
    largest: float | None = None
    same: bool = False  #: without a quirk: tokens and logprobs are those with it, to the last digit


class Each(Record):
    """A run without one of its quirks: all others are in force."""

    quirk: str
    bfloat16: Measured  #: the engine in bfloat16, the trainer as it is
    float32: Measured  #: float32 on both sides


class Row(Record):
    """A run, planned and measured."""

    run: Run
    config: dict[str, Any]  #: the checkpoint's ``config.json``, for its plans
    cpu: Planned
    cuda: Planned
    measured: tuple[str, ...]  #: the quirks that were in force when it was measured; the plans are renewed without that
    log: tuple[str, ...] = ()  #: what the hook logged in the run with quirks
    off: Measured
    on: Measured
    float32: Measured | None = None  #: float32 on both sides; None where no trainer is there
    each: tuple[Each, ...] = ()  #: without each of the quirks of `measured`, and of those whose value the program sets itself
    equal: int = 0  #: tokens that are the same on and off, up to the first that differs
    tokens: int = 0
    apart: float | None = None  #: the largest difference between the logprobs of the equal tokens, on and off
    date: str
    versions: dict[str, str]


class Rows(Record):
    """All rows, in the order of `RUNS`."""

    rows: tuple[Row, ...] = ()


# ---- plans


def config_of(run: Run, model: Path) -> GenerationConfig:
    """Returns the configuration that ``quirks plan -- vllm serve MODEL …`` makes of a run."""
    return read_serve_command(["vllm", "serve", str(model), *run.command]).config(purpose=run.purpose, settings=run.given)


def planned(run: Run, model: Path, platform: str, vllm: str = "0.32.0") -> Planned:
    """Plans a run for a release of vLLM and a platform; the CPU is one with AVX-512 BF16, whatever this one is."""
    config = config_of(run, model)
    assume = (f"vllm=={vllm}", f"platform=={platform}", "cpu==avx512_bf16")
    return _planned(make_plan(config, PlanOptions(assume=assume), environ={}))


def renewed(row: Row) -> Row:
    """Returns a row with the plans of today."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(row.config), encoding="utf-8")
        plans = {platform: planned(row.run, Path(folder), platform) for platform in ("cpu", "cuda")}
    return row.model_copy(update=plans)


def _planned(plan: Plan) -> Planned:
    applied = [item for item in plan.adjustments if item.status is Status.APPLIED]
    enforced = {quirk.id for item in applied if slot_named(item.slot).is_enforced for quirk in item.quirks}
    enforced |= {patch.quirk.id for patch in plan.patches}
    advised = {quirk.id for item in applied for quirk in item.quirks} - enforced
    already = {quirk.id for item in plan.adjustments if item.status is Status.ALREADY_SET for quirk in item.quirks} - enforced
    refused = tuple(sorted({quirk for refusal in plan.refusals for quirk in refusal.off}))
    kinds = {"applied": enforced, "advised": advised, "already": already}
    return Planned(**{kind: tuple(sorted(ids)) for kind, ids in kinds.items()}, refused=refused)


# ---- the page

_HEAD = """\
# The commonest runs, measured

What model-quirks does for a run as its program starts it: which quirks are in force, what they change, and which difference
between rollout and trainer remains.

| run | model | without quirks, on a CPU | with quirks | float32 on both sides as well |
|---|---|---|---|---|
{lines}

Figures are the mean absolute difference between the engine's logprobs of the sampled tokens and the trainer's, in nats.

- What remains with quirks is rounding to bfloat16, on both sides; float16 on both sides leaves an eighth of it at no cost
  ([measured](../why.md#precision)).
  Float32 on both sides removes it: a trainer in float32 (TRL: `bf16=False`), and
  `MODEL_QUIRKS_SET='{float32}'`. It costs twice the memory of the
  engine's weights and cache.
- *Fails*: on CPUs the first weight update ends with an error.
{gpu}- *Tiny* models have random weights. Rounding changes them more, by whole nats where a token goes to another expert.

Measured on {dates} on a CPU with AVX-512 BF16, eager, in one process: {versions}.
The programs were not run: each engine got its program's arguments, and the weights of a policy in the way of its trainer.
For a run that was not measured on a GPU, what is in force there is `quirks plan`'s answer for vLLM 0.32.
`python benchmarks/runs.py` makes this page.
{missing}"""
_TAIL = """## What the log shows

The log of a run with quirks has one line for each setting that changes and one for all patches. It ends with the receipt: the
plan is in force in each process. If no quirk changes anything and nothing is unknown, it is one line: *all clear, checked: …*.
{clear}

{logs}
## The quirks of these runs

| quirk | without it | cost while it is in force |
|---|---|---|
{quirks}
"""
_UPDATES = {
    Update.EACH: "Weights come one tensor at a time through `load_weights`.",
    Update.RELOAD: "Weights come through vLLM's reload, layer by layer; the transfer by NCCL is left out.",
    Update.BUCKET: "Weights come through `load_weights` in one bucket, then they are processed; the transfer is left out.",
}
#: The runs whose log is shown.
SHOWN = ("TRL colocate", "LLM() for evaluation")


def markdown(rows: Rows, gpu: Rows) -> str:
    """Returns the page of what was measured on a CPU and on a GPU."""
    dates = sorted({row.date for row in rows.rows})
    versions = dict.fromkeys(", ".join(f"{name} {value}" for name, value in row.versions.items()) for row in rows.rows)
    measured = {row.run for row in rows.rows}
    missing = [run.name for run in RUNS if run not in measured]
    head = _HEAD.format(
        lines="\n".join(map(_line, rows.rows)),
        float32=FLOAT32,
        gpu="".join(map(_on_gpu, gpu.rows)),
        dates=" and ".join(dict.fromkeys((dates[0], dates[-1]))),
        versions="; ".join(versions),
        missing=f"Not measured yet: {'; '.join(missing)}.\n" if missing else "",
    )
    groups: dict[Any, list[Row]] = {}
    for row in rows.rows:
        groups.setdefault((row.run.command, row.run.given, row.run.purpose), []).append(row)
    used = sorted({name for row in rows.rows for plan in (row.cpu, row.cuda) for name in (*plan.applied, *plan.advised)})
    logs = [(row.run.name, "\n".join(row.log)) for row in rows.rows if row.run.name in SHOWN and row.log]
    shown = "\n".join(f"{name}:\n\n```text\n{log}\n```\n" for name, log in logs)
    clear = [row.run.name for row in rows.rows if not (row.cpu.applied and row.cuda.applied)]
    which = f"So it is for {', '.join(clear)}." if clear else "Each of these runs has quirks in force, on CPUs and on GPUs."
    tail = _TAIL.format(clear=which, logs=shown, quirks="\n".join(map(_quirk, used)))
    there = {row.run: row for row in gpu.rows}
    return "\n".join([head, *(_section(group, there) for group in groups.values()), tail])


def _line(row: Row) -> str:
    name = f"[{row.run.name}](#{_anchor(row.run.name.partition(',')[0])})"
    model = f"{row.run.model}, trained" if row.run.model == TRAINED else f"{row.run.model}, tiny"
    both = _size(row.float32) if row.float32 else "-"
    return f"| {name} | {model} | {_size(row.off)} | {_change(row) if row.on.mean is None else _size(row.on)} | {both} |"


def _on_gpu(row: Row) -> str:
    off, on, both = map(_size, (row.off, row.on, row.float32))
    return f"- On an H100 {row.run.name}: {off} without quirks, {on} with them, {both} with float32 on both sides.\n"


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _size(found: Measured) -> str:
    if found.error:
        return "fails"
    return "-" if found.mean is None else f"{found.mean:.2g}"


def _change(row: Row) -> str:
    """Compares the samples of a run with those of the same run without quirks."""
    if row.on.error or row.off.error:
        return "fails" if row.on.error else "works"
    if row.equal < row.tokens:
        return f"{row.tokens - row.equal} of {row.tokens} tokens change"
    return "the same tokens" + (" and logprobs, to the last digit" if row.apart == 0 else f"; logprobs within {row.apart:.2g}")


def _section(rows: Sequence[Row], gpu: Mapping[Run, Row]) -> str:
    """Returns what the runs of one program have in common, and what differs by model."""
    run = rows[0].run
    command = " ".join(_quoted(word) for word in ("vllm", "serve", "MODEL", *run.command))
    given = "".join(f" --set {text}" for text in run.given)
    cpu, cuda = (frozenset.intersection(*(frozenset(getattr(row, name).applied) for row in rows)) for name in ("cpu", "cuda"))
    kinds = {"everywhere": cpu & cuda, "on CPUs": cpu - cuda, "on GPUs": cuda - cpu}
    for row in rows:
        kinds[f"{row.run.model}, on CPUs"] = frozenset(row.cpu.applied) - cpu
        kinds[f"{row.run.model}, on GPUs"] = frozenset(row.cuda.applied) - cuda
    advised = frozenset.intersection(*(frozenset(row.cuda.advised) for row in rows))
    kinds["advised: only the trainer or the client can set it"] = advised
    for row in rows:
        kinds[f"{row.run.model}, advised"] = frozenset(row.cuda.advised) - advised
    notes = [f"The arguments are those of {run.source}. {_UPDATES[run.update]}"] if run.trainer else []
    notes += _readings(rows)
    return "\n".join(
        [
            f"## {run.name}",
            "",
            "<!-- MODEL is yours. -->",
            "```console notest",
            f"$ quirks plan --purpose {run.purpose}{given} -- \\\n    {command}",
            "```",
            "",
            "| where | quirks in force |",
            "|---|---|",
            *(f"| {where} | {', '.join(sorted(ids))} |" for where, ids in kinds.items() if ids),
            "",
            *(f"- {text}" for text in notes),
            *([""] if notes else []),
            *(line for row in rows if row.each for line in _by_quirk(row, gpu.get(row.run))),
        ]
    )


def _by_quirk(row: Row, gpu: Row | None) -> Iterator[str]:
    """Yields what changes without each quirk of a run."""
    yield from (f"### {row.run.name}, quirk by quirk", "")
    yield from _without_each(row, "a CPU", row.cpu.already)
    if gpu is None:
        yield from ("- On a GPU this was not measured quirk by quirk.", "")
    else:
        versions = ", ".join(f"{name} {value}" for name, value in gpu.versions.items())
        yield from ("", *_without_each(gpu, "an H100", gpu.cuda.already))
        yield from (f"- Measured on {gpu.date}, eager, the trainer on the same GPU: {versions}.", "")


def _without_each(row: Row, where: str, already: Sequence[str]) -> Iterator[str]:
    changed = [one for one in row.each if not (one.bfloat16.same and one.float32.same)]
    same = [one.quirk for one in row.each if one not in changed]
    needless = [name for name in same if name not in already]
    given = [name for name in same if name in already]
    yield from (
        f"{row.run.model} on {where}, all quirks in force but one, mean |Δ| in nats:",
        "",
        "| without | engine in bfloat16, trainer under autocast | float32 on both sides |",
        "|---|---|---|",
        f"| none of them: all are in force | {_size(row.on)} | {_size(row.float32 or Measured())} |",
        *(f"| {_link(one.quirk)} | {_size(one.bfloat16)} | {_size(one.float32)} |" for one in changed),
        f"| all of them: none is in force | {_size(row.off)} | not measured |",
        "",
    )
    if needless:
        yield f"- Nothing changes, to the last digit of every logprob, without {_either(needless)}."
        yield "  What they cure needs requests or weights that this run does not have; the titles are at the end of this page."
    if given:
        yield f"- Nothing changes without {_either(given)} either: the program itself sets its value."


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _readings(rows: Sequence[Row]) -> Iterator[str]:
    """Yields what the table does not show: the errors, with their causes, and what was measured with other quirks."""
    errors = dict.fromkeys(row.off.error.partition(":")[0] for row in rows if row.off.error and not row.on.error)
    if errors:
        yield f"Without quirks the weight update on CPUs fails with `{'`, `'.join(errors)}`."
    for row in rows:
        if row.on.error:
            yield f"{row.run.name} fails with `{row.on.error}`: the cause is not known."
        elif row.off.mean is not None and row.equal < row.tokens:
            yield f"{row.run.name}: {_change(row)} (the same seeds; all tokens after the first that differs)."
        if row.on.mean and row.float32 and row.float32.mean and row.float32.mean > row.on.mean / 5:
            yield f"{row.run.name}: float32 on both sides leaves {row.float32.mean:.2g}, so rounding is not the cause."
        if later := sorted(set(row.cpu.applied) - set(row.measured)):
            yield f"{row.run.name} was measured without {', '.join(later)}."


def _quirk(name: str) -> str:
    quirk = _quirks()[name]
    return f"| {_link(name)} | {quirk.title.replace('|', ' ')} | {quirk.cost or '-'} |"


def _quoted(word: str) -> str:
    return f"'{word}'" if set(word) & set(' {"') else word


def _link(name: str) -> str:
    module = _modules().get(name)
    return f"[{name}](../../{module.replace('.', '/')}.py)" if module else name


@cache
def _modules() -> dict[str, str]:
    return {item.name: item.module for item in discover()}


@cache
def _quirks() -> dict[str, Any]:
    return {item.quirk.id: item.quirk for item in Registry.load().loaded}


def read(docs: Path = DOCS, platform: str = "cpu") -> Rows:
    """Reads the recorded rows of a platform."""
    file = docs / FILES[platform]
    return Rows.model_validate_json(file.read_bytes()) if file.exists() else Rows()
