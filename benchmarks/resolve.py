"""How long a plan takes with 10, 100, 500 and 10 000 quirks, what importing costs, and that nothing heavy is imported.

    python benchmarks/resolve.py            a table
    python benchmarks/resolve.py --json     the same as JSON

The quirks are a mix like that of real projects: most concern other models, some are dormant, some active, a few refuse or
warn. The sizes are timed in turns, so that a busy machine slows all of them alike. Exit code 1 if importing or planning pulls
in torch, vllm, ray or transformers.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import measure

from quirks_core import (
    Advise,
    Affected,
    Default,
    Quirk,
    Refuse,
    Require,
    RunContext,
    Severity,
    model_name,
    model_type,
    package,
    purpose,
    report,
    setting,
)
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.resolve import resolve
from quirks_core.plan.switches import Switches
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry
from worker import GenerationConfig

SIZES = (10, 100, 500, 10_000)
HEAVY = ("torch", "vllm", "ray", "transformers")
#: The aim, on two CPU cores.
AIMS = {"plan, 500 quirks": 10.0}

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


def plan_times(context: RunContext, rounds: int) -> dict[str, list[float]]:
    """Times `resolve` for every size, in turns; the largest only in every tenth round."""
    calls = {size: partial(resolve, context, quirks(size), Switches()) for size in SIZES}
    times: dict[str, list[float]] = {f"plan, {size} quirks": [] for size in SIZES}
    for call in calls.values():
        call()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for size, call in calls.items():
                if size <= 500 or number % 10 == 0:
                    times[f"plan, {size} quirks"].append(measure.timed(call))
                    gc.collect(0)
    finally:
        gc.enable()
    return times


def import_times(rounds: int) -> list[float]:
    """Milliseconds of ``import quirks_core.plugins.registry`` in a new process, over those of a bare one; both in turns."""
    codes = {"bare": "pass", "import": "import quirks_core.plugins.registry"}
    calls = {name: partial(measure.timed, partial(measure.child, code)) for name, code in codes.items()}
    times = measure.in_turns(calls, rounds)
    bare = statistics.median(times["bare"])
    return [milliseconds - bare for milliseconds in times["import"]]


def heavy_imports() -> list[str]:
    """Says which heavy packages a process holds after it imported us, loaded every quirk and made a plan."""
    code = (
        "import sys, tempfile, pathlib, worker\n"
        "from quirks_core.plugins.planning import make_plan\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    pathlib.Path(folder, 'config.json').write_text('{\"model_type\": \"gemma4\"}')\n"
        "    make_plan(worker.GenerationConfig.parse({'model': folder})).to_json()\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    return [f"{name} is imported although a plan does not need it" for name in measure.child(code)]


def results(rounds: int) -> Iterator[measure.Row]:
    """Measures everything."""
    with tempfile.TemporaryDirectory() as folder:
        context = gemma(folder)
        yield from measure.rows(plan_times(context, rounds), to=f"plan, {SIZES[0]} quirks", aims=AIMS)
        registry = Registry.load()
        calls: dict[str, Callable[[], object]] = {
            "gather the facts": partial(gemma, folder),
            "discover plugins, once more": discover,
            "load the registry, once more": Registry.load,
            f"plan, {len(registry.loaded)} built-in quirks": partial(registry.resolve, context),
        }
        timed = {name: partial(measure.timed, call) for name, call in calls.items()}
        yield from measure.rows(measure.in_turns(timed, rounds))
    yield from measure.rows({"import quirks_core.plugins.registry, above bare Python": import_times(max(5, rounds // 10))})


if __name__ == "__main__":
    sys.exit(measure.main(__doc__ or "", results, rounds=200, notes=heavy_imports))
