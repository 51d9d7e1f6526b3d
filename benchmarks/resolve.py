"""How long a plan takes with 10, 100 and 500 quirks, what importing costs, and that nothing heavy is imported.

    python benchmarks/resolve.py            a table
    python benchmarks/resolve.py --json     the same as JSON

The quirks are a mix like that of real projects: most concern other models, some are dormant, some active, a few refuse or
warn. The sizes are timed in turns, within one loop, so that a busy machine slows all of them alike. Exit code 1 if
importing or planning pulls in torch, vllm, ray or transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from quirks_core import (
    Advise,
    Affected,
    Default,
    Quirk,
    Refuse,
    Registry,
    Require,
    RunContext,
    Severity,
    Switches,
    discover,
    model_name,
    model_type,
    package,
    purpose,
    report,
    setting,
)
from quirks_core.loaded import Loaded
from quirks_core.resolve import resolve
from worker import GenerationConfig

SIZES = (10, 100, 500)
HEAVY = ("torch", "vllm", "ray", "transformers")
#: The aim for the largest size, on two CPU cores.
LIMIT_MS = 10.0

_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe", "mixtral", "phi3", "olmo2", "gpt_oss")
_REPORT = report("https://example.org/issues/1")


def _other_model(number: int) -> dict[str, Any]:
    """Concerns another model family, within a range of versions: what most quirks are to any one run."""
    family = _FAMILIES[number % len(_FAMILIES)]
    return {
        "match": model_type(family, f"{family}_vl") & purpose("rollout", "eval"),
        "affected": (Affected("vllm", introduced="0.8.0", fixed=f"0.{11 + number % 30}.0"),),
        "adjustments": (Require("engine.load_format", "auto", instead_of=("dummy",)),),
    }


def _dormant(number: int) -> dict[str, Any]:
    """Concerned this model on engines before the installed one."""
    return {
        "match": model_type("gemma2", "gemma3", "gemma3_text"),
        "affected": (Affected("vllm", introduced="0.7.0", fixed=f"0.{9 + number % 10}.2"),),
        "adjustments": (Require("engine.enforce_eager", True),),
    }


def _configuration(_: int) -> dict[str, Any]:
    """Concerns a configuration that this run does not have."""
    return {
        "match": setting("train.context_parallel_size").above(1)
        & setting("train.backend").one_of("fsdp2")
        & (setting("train.sequence_packing").is_true() | setting("train.sequence_parallel").is_true()),
        "adjustments": (Refuse("both shard the sequence", "set train.context_parallel_size: 1"),),
    }


def _recipe(number: int) -> dict[str, Any]:
    """Concerns models by their name."""
    return {
        "match": model_name(rf"(deepscaler|coder)-v{number}\b") & ~package("transformers", fixed="4.50"),
        "adjustments": (Default("engine.enforce_eager", True), Advise("slow")),
    }


def _active(number: int) -> dict[str, Any]:
    """Concerns this run and agrees with its like."""
    slot, value = (("engine.logprobs_mode", "processed_logprobs"), ("refit.scope", "state_dict"))[number // 10 % 2]
    return {
        "match": model_type("gemma3_text") & purpose("rollout"),
        "affected": (Affected("vllm", introduced="0.10.2"),),
        "adjustments": (
            Default(slot, value),
            Default("request.timeout_s", lambda _: 600.0, when=setting("engine.async_engine").is_true()),
        ),
    }


#: Ten quirks; larger sizes repeat the proportions.
_MIX: tuple[Callable[[int], dict[str, Any]], ...] = (
    *(_other_model,) * 4,
    *(_dormant,) * 2,
    _configuration,
    *(_recipe,) * 2,
    _active,
)


def quirks(count: int) -> tuple[Loaded, ...]:
    """Declares that many quirks of the realistic mix."""
    return tuple(
        Loaded(
            Quirk(
                id=f"acme/quirk-{number}",
                title=f"Something goes wrong, number {number}",
                flag="acme:benchmark",
                severity=Severity.WRONG_OUTPUT,
                references=(_REPORT,),
                **_MIX[number % len(_MIX)](number),
            ),
            "acme",
            "1.0",
            "acme",
        )
        for number in range(count)
    )


def gemma(folder: str) -> RunContext:
    """Gathers the facts of a Gemma-3 rollout."""
    (Path(folder) / "config.json").write_text('{"model_type": "gemma3_text"}', encoding="utf-8")
    return RunContext.gather(GenerationConfig.parse({"model": folder}), environ={})


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def plan_times(context: RunContext, rounds: int) -> dict[str, list[float]]:
    """Times `resolve` for every size, in turns."""
    sets = {str(size): quirks(size) for size in SIZES}
    switches = Switches({})
    times: dict[str, list[float]] = {name: [] for name in sets}
    for loaded in sets.values():
        resolve(context, loaded, switches)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, loaded in sets.items():
                times[name].append(timed(lambda loaded=loaded: resolve(context, loaded, switches)))
            gc.collect(0)
    finally:
        gc.enable()
    return times


def import_times(rounds: int) -> list[float]:
    """Milliseconds that a Python process takes longer with ``import quirks_core``, bare and importing in turns."""

    def process(code: str) -> float:
        return timed(lambda: subprocess.run([sys.executable, "-c", code], check=True))  # noqa: S603  # our own text

    process("import quirks_core")  # writes the byte code
    pairs = [(process("pass"), process("import quirks_core")) for _ in range(rounds)]
    bare = statistics.median(first for first, _ in pairs)
    return [second - bare for _, second in pairs]


def heavy_imports() -> list[str]:
    """The heavy packages that a process holds after it imported us, loaded every quirk and made a plan."""
    code = (
        "import sys, tempfile, pathlib, worker, quirks_core as core\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    pathlib.Path(folder, 'config.json').write_text('{\"model_type\": \"gemma4\"}')\n"
        "    context = core.RunContext.gather(worker.GenerationConfig.parse({'model': folder}))\n"
        "    core.Registry.load().resolve(context).to_json()\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603  # our own text
    return run.stdout.split()


def summary(times: Sequence[float]) -> dict[str, float]:
    """Minimum and median in milliseconds."""
    return {"min_ms": round(min(times), 3), "median_ms": round(statistics.median(times), 3), "runs": len(times)}


def measure(rounds: int) -> dict[str, Any]:
    """Measures everything."""
    with tempfile.TemporaryDirectory() as folder:
        context = gemma(folder)
        plans = plan_times(context, rounds)
        gather = [timed(lambda: gemma(folder)) for _ in range(rounds)]
        result = {f"plan, {name} quirks": summary(times) for name, times in plans.items()}
        smallest = result[f"plan, {SIZES[0]} quirks"]["median_ms"]
        for row in result.values():
            row["ratio"] = round(row["median_ms"] / smallest, 2)
        result["gather the facts"] = summary(gather)
        result["discover plugins"] = summary([timed(discover) for _ in range(rounds)])
        result["load the registry"] = summary([timed(Registry.load) for _ in range(rounds)])
        registry = Registry.load()
        built_in = [timed(lambda: registry.resolve(context)) for _ in range(rounds)]
        result[f"plan, {len(registry.loaded)} built-in quirks"] = summary(built_in)
    result["import quirks_core, above bare Python"] = summary(import_times(max(5, rounds // 10)))
    return result


def main() -> int:
    """Measures, prints, and fails if something heavy was imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=200, help="runs of each measurement (default 200)")
    options = parser.parse_args()
    result, heavy = measure(options.rounds), heavy_imports()
    if options.json:
        print(json.dumps({"results": result, "heavy_imports": heavy}, indent=2))
    else:
        show(result, heavy)
    return 1 if heavy else 0


def show(result: dict[str, Any], heavy: list[str]) -> None:
    """Prints the table."""
    table = Table(title="model-quirks: the pure part", title_justify="left")
    table.add_column("what")
    for heading in ("min ms", "median ms", f"ratio to {SIZES[0]}", "runs"):
        table.add_column(heading, justify="right")
    for name, row in result.items():
        table.add_row(name, f"{row['min_ms']:.2f}", f"{row['median_ms']:.2f}", str(row.get("ratio", "")), str(row["runs"]))
    console = Console()
    console.print(table)
    median = result[f"plan, {SIZES[-1]} quirks"]["median_ms"]
    console.print(
        f"{SIZES[-1]} quirks: {median:.1f} ms, {'within' if median <= LIMIT_MS else 'over'} the aim of {LIMIT_MS:g} ms"
    )
    console.print(f"imported although not needed: {', '.join(heavy)}" if heavy else f"not imported: {', '.join(HEAVY)}")


if __name__ == "__main__":
    sys.exit(main())
