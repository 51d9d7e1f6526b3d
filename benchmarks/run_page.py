"""The commonest runs, their plans, and the page that is made of what was measured (`runs.py`)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum, auto
from functools import cache
from pathlib import Path
from typing import Any

from quirks_core.base.record import Record
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.serve_command import read_serve_command
from quirks_core.configuration.slots import is_enforced
from quirks_core.plan.records import Plan, Status
from quirks_core.plugins.discovery import discover
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry

#: The documentation's folder, with ``runs.json`` and ``runs.md``.
DOCS = Path(__file__).parents[1] / "docs"
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
        told: What the trainer's preset says of its weight updates, and what the user says, by slot.
        purpose: Of the engine.
        trainer: Whose facts and numerics are used; empty if no trainer is there.
        update: How its weights reach the engine.
        temperature: Of the samples.
        source: Where the engine's arguments were read.
    """

    name: str
    model: str = TRAINED
    command: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    purpose: str = "rollout"
    trainer: str = ""
    update: Update = Update.EACH
    temperature: float = 1.0
    source: str = ""


_TRL = {
    "command": ("--distributed-executor-backend", "external_launcher", "--max-num-batched-tokens", "4096",
                "--logprobs-mode", "processed_logprobs"),
    "told": ("refit.scope=parameters", "refit.clear_cache=true"),
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
    "told": ("refit.scope=state_dict", "refit.clear_cache=true"),
    "trainer": "verl",
    "update": Update.BUCKET,
    "source": "verl 1dda039, `verl/workers/rollout/vllm_rollout/vllm_async_server.py`",
}  # fmt: skip
_FAMILIES = {"Qwen3": "qwen3", "Qwen3-MoE": "qwen3_moe", "Llama-3": "llama", "Gemma-3": "gemma3", "gpt-oss": "gpt_oss"}
RUNS = (
    Run(name="TRL colocate", **_TRL),
    Run(name="TRL colocate, LoRA", **_TRL),
    Run(name="TRL server", **_TRL_SERVER),
    Run(name="verl", **_VERL),
    Run(name="vllm serve for agents", purpose="serve", temperature=0.7, command=("--enable-prefix-caching",)),
    Run(name="LLM() for evaluation", purpose="eval", temperature=0.0),
    *(Run(name=f"TRL colocate, {name}", model=kind, **_TRL) for name, kind in _FAMILIES.items()),
    Run(name="TRL colocate, DeepSeek", model="deepseek_v3", **_TRL),
)


#: Why runs fail with quirks as well.
NOTES = {
    "TRL colocate, DeepSeek": (
        "transformers 5 holds all experts of a layer in one tensor, TRL sends what transformers holds, and vLLM's DeepSeek "
        "takes one tensor for each expert. Our worker's refit splits them; TRL's does not, and no quirk does it for TRL."
    ),
}


class Planned(Record):
    """What a plan does."""

    applied: tuple[str, ...]  #: quirks in force in the engine
    advised: tuple[str, ...]  #: quirks whose setting only the trainer or the client can make
    refused: tuple[str, ...] = ()  #: why the run does not start


class Measured(Record):
    """One engine; figures in nats."""

    error: str = ""  #: why there are no figures
    mean: float | None = None  #: mean |rollout - trainer|; None without a trainer
    largest: float | None = None


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
    return read_serve_command(["vllm", "serve", str(model), *run.command]).config(purpose=run.purpose, settings=run.told)


def planned(run: Run, model: Path, platform: str) -> Planned:
    """Plans a run for vLLM 0.32.0 and a platform; the CPU is one with AVX-512 BF16, whatever this one is."""
    config = config_of(run, model)
    assume = ("vllm==0.32.0", f"platform=={platform}", "cpu==avx512_bf16")
    return _planned(make_plan(config, PlanOptions(assume=assume), environ={}))


def renewed(row: Row) -> Row:
    """Returns a row with the plans of today."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(row.config), encoding="utf-8")
        plans = {platform: planned(row.run, Path(folder), platform) for platform in ("cpu", "cuda")}
    return row.model_copy(update=plans)


def _planned(plan: Plan) -> Planned:
    applied = [item for item in plan.adjustments if item.status is Status.APPLIED]
    enforced = {quirk.id for item in applied if is_enforced(item.slot) for quirk in item.quirks}
    enforced |= {patch.quirk.id for patch in plan.patches}
    advised = {quirk.id for item in applied for quirk in item.quirks} - enforced
    refused = tuple(sorted({quirk for refusal in plan.refusals for quirk in refusal.off}))
    return Planned(applied=tuple(sorted(enforced)), advised=tuple(sorted(advised)), refused=refused)


# ---- the page

_HEAD = """\
# The commonest runs, measured

Made by `python benchmarks/runs.py`; not edited by hand. Measured on {date} on a CPU with small models, eager, in one process:
{versions}. No GPU was used; what is applied
there is what `quirks plan` says, and was not measured.
[A trained model, measured](why.md#a-trained-model-measured) has figures of an H100.

Each run starts vLLM's engine with the arguments that its program gives it, without `MODEL_QUIRKS` (*off*) and with it (*on*).
The program itself is not run. Before it generates, a rollout gets the weights of a policy in its trainer's way. The figures are
the mean absolute difference between the logprobs of the engine and those of the trainer, in nats. *Tokens equal* compares on
with off: the same seeds, up to the first token that differs. *Float32* is *on* with a trainer in float32 and
`MODEL_QUIRKS_SET='{float32}'`.

| run | model | off | on | tokens equal | float32 on both sides |
|---|---|---|---|---|---|
"""


def markdown(rows: Rows) -> str:
    """Returns the page."""
    dates = sorted({row.date for row in rows.rows})
    text = "; ".join(dict.fromkeys(", ".join(f"{name} {value}" for name, value in row.versions.items()) for row in rows.rows))
    head = _HEAD.format(date=" and ".join(dict.fromkeys((dates[0], dates[-1]))), versions=text, float32=FLOAT32)
    measured = {row.run for row in rows.rows}
    missing = [run.name for run in RUNS if run not in measured]
    rest = [f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []
    return head + "\n".join([*map(_line, rows.rows), "", *rest, *_sections(rows)]) + "\n"


def _line(row: Row) -> str:
    model = f"{row.run.model}, trained" if row.run.model == TRAINED else f"{row.run.model}, tiny"
    equal = f"{row.equal} of {row.tokens}" if row.tokens else "-"
    if row.tokens and row.equal == row.tokens and row.apart == 0:
        equal += ", logprobs to the last digit"
    both = _size(row.float32) if row.float32 else "-"
    return f"| {row.run.name} | {model} | {_size(row.off)} | {_size(row.on)} | {equal} | {both} |"


def _size(found: Measured) -> str:
    if found.error:
        return "error"
    return "-" if found.mean is None else f"{found.mean:.2g}"


def _sections(rows: Rows) -> Iterator[str]:
    for row in rows.rows:
        yield from (f"## {row.run.name}", "", *_details(row), "")
    used = sorted({name for row in rows.rows for plan in (row.cpu, row.cuda) for name in plan.applied})
    yield from ("## What the quirks cost", "", "| quirk | cost while it is applied |", "|---|---|")
    yield from (f"| {_link(name)} | {_quirks()[name].cost or 'not measured'} |" for name in used)


def _details(row: Row) -> Iterator[str]:
    run = row.run
    command = " ".join(_quoted(word) for word in ("vllm", "serve", "MODEL", *run.command))
    told = "".join(f" --set {text}" for text in run.told)
    yield f"- Plan: `quirks plan --purpose {run.purpose}{told} -- {command}`"
    if run.trainer:
        yield f"- The arguments are those of {run.source}. {_UPDATES[run.update]}"
    yield f"- Applied on this CPU: {_links(row.cpu.applied)}."
    if later := sorted(set(row.cpu.applied) - set(row.measured)):
        yield f"- It was measured without {_links(later)}, which came later."
    yield f"- Applied on a GPU: {_links(row.cuda.applied)}."
    if row.cuda.advised or row.cpu.advised:
        yield f"- Advised, because only the trainer or the client can set it: {_links(row.cuda.advised)}."
    for name, found in (("Off", row.off), ("On", row.on), ("Float32", row.float32)):
        if found is not None and found.error:
            yield f"- {name}: `{found.error}`"
    yield f"- {_reading(row)}"


_UPDATES = {
    Update.EACH: "Its weights come one tensor at a time through `load_weights`.",
    Update.RELOAD: "Its weights come through vLLM's reload, layer by layer; the transfer by NCCL is left out.",
    Update.BUCKET: "Its weights come through `load_weights` in one bucket, then they are processed; the transfer is left out.",
}


def _reading(row: Row) -> str:
    """Says what a run's figures mean together."""
    if row.off.error and row.on.error:
        return f"It fails with quirks and without: {NOTES.get(row.run.name, 'the cause is not known.')}"
    if row.off.error:
        text = "Without quirks the run fails, with them it works."
    elif row.equal == row.tokens and row.apart == 0:
        text = "Changed: nothing; tokens and logprobs are equal to the last digit."
    elif row.equal == row.tokens:
        text = f"Changed: no token, and no logprob by more than {row.apart:.2g} nats."
    else:
        text = f"Changed: {row.tokens - row.equal} of {row.tokens} tokens come after one that differs."
    if row.on.mean is None:
        return f"{text} No trainer is there, so nothing remains to compare." if not row.on.error else text
    text += f" Remains: {row.on.mean:.2g} nats (largest {row.on.largest:.2g})"
    if row.float32 is None or row.float32.mean is None:
        return f"{text}; float32 on both sides was not measured."
    if row.float32.mean < row.on.mean / 5:
        return (
            f"{text}, which is rounding to bfloat16 on both sides: float32 there leaves {row.float32.mean:.2g}, for twice the "
            "memory of the engine's weights and cache."
        )
    return f"{text}; float32 on both sides leaves {row.float32.mean:.2g}, so rounding is not the cause."


def _quoted(word: str) -> str:
    return f"'{word}'" if set(word) & set(' {"') else word


def _links(names: Sequence[str]) -> str:
    return ", ".join(map(_link, names)) or "none"


def _link(name: str) -> str:
    module = _modules().get(name)
    return f"[{name}](../{module.replace('.', '/')}.py)" if module else name


@cache
def _modules() -> dict[str, str]:
    return {item.name: item.module for item in discover()}


@cache
def _quirks() -> dict[str, Any]:
    return {item.quirk.id: item.quirk for item in Registry.load().loaded}


def read(docs: Path = DOCS) -> Rows:
    """Reads the recorded rows."""
    file = docs / "runs.json"
    return Rows.model_validate_json(file.read_bytes()) if file.exists() else Rows()
