"""``quirks parity dump`` and ``quirks parity compare``, and what ``quirks migrate`` shares with them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from quirks_core.cli.run import load_config
from quirks_core.cli.screen import Screen
from quirks_core.context import ModelFacts
from quirks_core.diff import Change
from quirks_core.errors import UsageError

if TYPE_CHECKING:
    from worker.parity.compare import Cause, Compared, Comparison, Cover
    from worker.parity.dump import Dump, Order

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
#: The metrics that a person sees; the JSON has all.
_SHOWN = ("mean_abs_delta", "max_abs_delta", "kl_k3")
#: Settings of one side alone that are listed by name.
_LISTED = 8
_LONGEST_VALUE = 60


def run_dump(options: argparse.Namespace) -> int:
    """Writes what this installation's engine generates to ``options.output``; `make_order` says which options it takes."""
    if options.output is None:
        raise UsageError("quirks parity dump needs --output FILE")
    if options.output.is_dir():
        raise UsageError(f"--output {options.output} is a folder; name a file")
    from worker.parity.dump import carry_out

    console = Screen(stderr=options.json)
    order = make_order(options, console)
    with stages(console) as tell:
        dump = asyncio.run(carry_out(order, tell))
    if options.json:
        print(
            json.dumps({"output": order.output, "rows": len(dump.rows), "plan": dump.plan, "versions": dump.versions}, indent=2)
        )
    else:
        console.print(f"{len(dump.rows)} rows by vLLM {dump.versions.get('vllm')} in {order.output}", highlight=False)
    return 0


def run_compare(options: argparse.Namespace, files: Sequence[str]) -> int:
    """Compares two dumps by ``options.profile`` and ``options.threshold``; 1 if a threshold is crossed."""
    if len(files) != 2:
        raise UsageError("quirks parity compare takes two dumps: A.json B.json")
    from worker.parity.compare import compare
    from worker.parity.dump import Dump

    a, b = (Dump.read(Path(file)) for file in files)
    found = compare(a, b, profile=options.profile, thresholds=options.threshold, cover=covering(a, b))
    if options.json:
        print(found.model_dump_json(indent=2))
    else:
        show_comparison(Screen(), found)
    return 0 if found.passed else 1


def covering(a: Dump, b: Dump) -> Cover:
    """Returns what gives the installed quirks that set a slot, with where they are in force."""
    from quirks_core.registry import Registry
    from worker.parity.causes import quirks_that_set

    registry = Registry.load()
    return lambda slot: quirks_that_set(slot, registry, a.quirks, b.quirks)


def make_order(options: argparse.Namespace, console: Console) -> Order:
    """Reads configuration and prompts, before any engine starts.

    Args:
        options: Those that describe a run, and ``prompts``, ``num_prompts``, ``tokens``, ``samples``, ``seed``, ``output`` and
            ``tokens_of``; the last three may be None or missing.
        console: Where warnings go.

    Raises:
        UsageError: Something in them is wrong.
    """
    from worker.parity.dump import Dump, Order, prepared
    from worker.parity.prompts import load_prompts

    config = prepared(load_config(options), options.tokens)
    model = config.model
    vocab_size = ModelFacts.read(model.path, model.revision).text_config.get("vocab_size")
    tokens_of = getattr(options, "tokens_of", None)
    if tokens_of is not None:
        Dump.read(Path(tokens_of))  # now, not after the engine has started
    prompts = load_prompts(
        model.path,
        tokenizer=model.tokenizer,
        revision=model.revision,
        vocab_size=vocab_size if isinstance(vocab_size, int) else None,
        file=options.prompts,
        count=options.num_prompts,
        seed=options.seed,
    )
    for warning in prompts.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    return Order(
        config=config.model_dump(mode="json", exclude_unset=True),
        disable=tuple(options.disable),
        force=tuple(options.force),
        prompts=prompts.rows,
        samples=options.samples,
        seed=options.seed,
        tokens_of=None if tokens_of is None else str(tokens_of),
        output=str(options.output),
    )


def output_folder(folder: Path | None) -> Path | None:
    """Makes the folder of ``--output`` before the work, not after it; None if none was asked for.

    Raises:
        UsageError: It cannot be made or written to.
    """
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {folder} cannot be written to")
    return folder


@contextmanager
def stages(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows what is being done and for how long; a console that is no terminal gets a line for each stage."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def tell(text: str) -> None:
            bar.update(task, description=escape(text))
            if not console.is_terminal:
                console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

        yield tell


# ---- what a person sees


def show_comparison(console: Console, found: Comparison) -> None:
    """Prints a comparison: the rows, the thresholds that are crossed, what probably moved parity, and all else that differs."""
    console.print(_rows(found))
    for kind in found.kinds:
        worst = {verdict.metric: verdict for verdict in reversed(kind.verdicts)}  # failures come first
        for verdict in reversed(worst.values()):
            if verdict.level != "ok":
                against = f"{_number(verdict.value)}, limit {_number(verdict.limit)}"
                text = f"{kind.kind}: {verdict.metric} {against} ({verdict.source})"
                console.print(f"[{_COLOURS[verdict.level]}]{verdict.level}[/] {escape(text)}", soft_wrap=True, highlight=False)
    if found.causes:
        console.print(_causes(found.causes))
    if (table := _differences(found)).row_count:
        console.print(table)
    console.print(escape(found.reading), soft_wrap=True, highlight=False)


def _rows(found: Comparison) -> Table:
    from worker.parity.figures import label

    versions = [f"{side} = {_engine(one)}" for side, one in (("A", found.a), ("B", found.b))]
    table = Table(
        title=f"{escape(found.a.model)}: {', '.join(versions)}",
        caption=f"Δ = A - B in nats, over the tokens before the first difference; thresholds: {escape(found.profile)}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("rows", no_wrap=True)
    for heading in ("same", "equal tokens"):
        table.add_column(heading, overflow="fold")
    for metric in _SHOWN:
        table.add_column(escape(label(metric)), justify="right", overflow="fold")
    table.add_column("", no_wrap=True)
    for kind in found.kinds:
        table.add_row(*_row(kind))
    return table


def _row(kind: Compared) -> Iterator[str]:
    yield kind.kind
    forced = kind.kind == "teacher-forced"
    yield "-" if forced else f"{kind.identical} of {kind.rows}"
    yield f"{kind.equal_tokens} scored" if forced else f"{kind.equal_tokens} of {kind.tokens}"
    for metric in _SHOWN:
        yield _number(kind.metrics[metric])
    yield f"[{_COLOURS[kind.level]}]{kind.level}[/]"


def _causes(causes: Sequence[Cause]) -> Table:
    table = Table(title="settings that differ and can move tokens or logprobs, the likeliest first", title_justify="left")
    for heading in ("setting of the engine", "A", "B", "why it matters", "set it by"):
        table.add_column(heading, overflow="fold")
    for cause in causes:
        quirks = "".join(f"\nquirk {quirk.id}: {quirk.state}" for quirk in cause.quirks)
        table.add_row(
            escape(cause.name),
            _value(cause.a),
            _value(cause.b),
            f"{cause.concern}: {escape(cause.why)}",
            escape(cause.slot + quirks),
        )
    return table


def _differences(found: Comparison) -> Table:
    table = Table(title="all else that differs", title_justify="left")
    for heading in ("", "what", "A", "B"):
        table.add_column(heading, overflow="fold")
    named = {cause.name for cause in found.causes}
    for group, changes in (
        ("version", found.versions),
        ("setting", found.settings),
        ("quirk", found.quirks),
        ("engine", tuple(change for change in found.effective if change.name not in named)),
    ):
        table.add_section()
        for change in changes:
            if group != "engine" or change.missing is None:
                table.add_row(group, escape(change.name), _side(change, "a"), _side(change, "b"))
        for side in ("a", "b"):
            names = [change.name for change in changes if group == "engine" and change.missing == side]
            if names:
                more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
                there = "only B has" if side == "a" else "only A has"
                table.add_row(group, f"{there} {len(names)}: {escape(', '.join(names[:_LISTED]))}{more}", "", "")
    return table


def _side(change: Change, side: str) -> str:
    return "-" if change.missing == side else _value(getattr(change, side))


def _value(value: Any) -> str:
    from worker.parity.figures import plain

    text = plain(value)
    return escape(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…")


def _number(value: float) -> str:
    from worker.parity.figures import number

    return number(value)


def _engine(side: Any) -> str:
    return f"vLLM {side.versions.get('vllm', 'unknown')} on {side.platform or 'an unknown platform'}"
