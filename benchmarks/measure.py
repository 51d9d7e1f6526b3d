"""What the benchmarks share: timing in turns, fake installations, and one way to print."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: What was measured.
        min_ms: The fastest run.
        median_ms: The median of all runs; the figure to quote.
        runs: How many there were.
        ratio: The median by that of the row it is compared with; 0 if there is none.
        to: That row.
        aim_ms: What the median should not exceed; 0 if there is no aim.
    """

    what: str
    min_ms: float
    median_ms: float
    runs: int
    ratio: float = 0.0
    to: str = ""
    aim_ms: float = 0.0


#: Qwen3 models by name: hidden, intermediate, layers, heads, key-value heads, head, vocabulary; tied embeddings.
_QWEN3 = {
    "tiny": (128, 256, 2, 4, 2, 32, 512, True),
    "1.7B": (2048, 6144, 28, 16, 8, 128, 151936, True),
    "8B": (4096, 12288, 36, 32, 8, 128, 151936, False),
    "30B-A3B": (2048, 6144, 12, 32, 4, 128, 151936, False),  # 12 of its 48 layers: 16 GB
}
#: What MoE models have beside that.
_EXPERTS = {"30B-A3B": {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}}


def qwen3(folder: Path, shape: str, *, layers: int | None = None) -> Path:
    """Writes the configuration of a model in bfloat16; its weights exist in memory alone.

    Args:
        folder: Where to.
        shape: A name in the table above.
        layers: Another number of layers.
    """
    from transformers import Qwen3Config, Qwen3MoeConfig

    experts = _EXPERTS.get(shape)
    kind = Qwen3MoeConfig if experts else Qwen3Config
    hidden, intermediate, usual, heads, kv_heads, head, vocabulary, tied = _QWEN3[shape]
    kind(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers or usual,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        architectures=[kind.__name__.replace("Config", "ForCausalLM")],
        dtype="bfloat16",
        **(experts or {}),
    ).save_pretrained(folder)
    return folder


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def in_turns(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs every measurement once per round, so that a busy machine slows all of them alike; each first run is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            milliseconds = call()
            if number:
                times[name].append(milliseconds)
    return times


def rows(times: Mapping[str, Sequence[float]], *, to: str = "", aims: Mapping[str, float] | None = None) -> list[Row]:
    """Sums measurements up.

    Args:
        times: Milliseconds by name.
        to: The name that all others are compared with; none if empty.
        aims: Milliseconds that a median should not exceed, by name.
    """
    base = statistics.median(times[to]) if to else 0.0
    return [
        Row(
            what=name,
            min_ms=round(min(values), 4),
            median_ms=round(median := statistics.median(values), 4),
            runs=len(values),
            ratio=round(median / base, 4) if base else 0.0,
            to=to,
            aim_ms=(aims or {}).get(name, 0.0),
        )
        for name, values in times.items()
    ]


def child(code: str, site: Path | None = None) -> list[str]:
    """Runs a program in a process of its own, with a folder of fake packages, and returns the words that it prints.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    environment = {**os.environ, **({"PYTHONPATH": str(site)} if site else {})}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)  # noqa: S603  # our own text
    return run.stdout.split()


def install(site: Path, distribution: str, points: Mapping[str, str], modules: Mapping[str, str] | None = None) -> None:
    """Installs a fake distribution: the metadata that pip writes, and modules.

    Args:
        site: A folder for ``PYTHONPATH``.
        distribution: Its name.
        points: What its entry points name.
        modules: Sources by module name.
    """
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[model_quirks]", *lines, ""]), encoding="utf-8")
    for name, text in (modules or {}).items():
        (site / f"{name}.py").write_text(text, encoding="utf-8")


def main(doc: str, measure: Callable[[int], Iterable[Row]], *, rounds: int, notes: Callable[[], Sequence[str]] = list) -> int:
    """Reads the arguments, measures, and prints a table or JSON.

    Args:
        doc: What is measured, for the help; its first line is the title.
        measure: Measures with that many rounds.
        rounds: The default number of rounds.
        notes: What is wrong apart from time, in words.

    Returns:
        The exit code: 1 if there are notes. No figure makes a benchmark fail; the machine may be busy.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"runs of each measurement (default {rounds})")
    options = parser.parse_args()
    found, problems = list(measure(options.rounds)), list(notes())
    if options.json:
        print(json.dumps({"results": [asdict(row) for row in found], "problems": problems}, indent=2))
    else:
        _show(doc.partition("\n")[0].rstrip("."), found, problems)
    return 1 if problems else 0


def _show(title: str, found: Sequence[Row], problems: Sequence[str]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for heading in ("min ms", "median ms", "ratio", "runs", "aim"):
        table.add_column(heading, justify="right")
    for row in found:
        digits = 3 if row.median_ms < 1 else 1
        aim = f"{row.aim_ms:g} ms {'met' if row.median_ms <= row.aim_ms else 'MISSED'}" if row.aim_ms else ""
        ratio = f"{row.ratio:.3g}" if row.ratio else ""
        table.add_row(row.what, f"{row.min_ms:.{digits}f}", f"{row.median_ms:.{digits}f}", ratio, str(row.runs), aim)
    console = Console(width=None if sys.stdout.isatty() else 128)
    console.print(table)
    for name in dict.fromkeys(row.to for row in found if row.to):
        console.print(f"ratio: to '{name}', in the rows that follow it", style="dim")
    for problem in problems:
        console.print(f"[bold red]problem:[/] {problem}")
