"""``quirks parity``: do the rollout engine and the trainer give the same tokens the same logprobs, and if not, why not?"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.numbers import share
from quirks_core.cli.options import installed_only, load_config, plan_options
from quirks_core.configuration.slots import slot_named
from quirks_core.facts.trainers import numerics
from quirks_core.reporting.terminal import Screen, line
from worker.lab.cli.arguments import add_limits, add_prompts, add_verbose, output_folder
from worker.lab.cli.compare import run_compare, run_dump
from worker.lab.cli.display import quiet_engine, stages

if TYPE_CHECKING:
    from quirks_core.configuration.config import GenerationConfig
    from worker.lab.parity.frontier import Frontier, Pair
    from worker.lab.parity.records import Notify, Report

_DUMP, _COMPARE, _EXPLAIN = "dump", "compare", "explain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to measure and where to write it."""
    parser.add_argument(
        "action", nargs="*", metavar="ACTION",
        help="'dump': write what this engine generates to --output; 'compare A B': compare two such files, without an engine; "
        "'explain': try every pair of dtypes, and say which to take; none: measure",
    )  # fmt: skip
    what = parser.add_argument_group("what to measure")
    what.add_argument("--scenario", metavar="NAME", action="append", default=[], help="only this scenario (repeatable)")
    add_prompts(what)
    what.add_argument(
        "--trainer",
        metavar="NAME",
        help="compute as this trainer does by default (trl), where the configuration leaves it open",
    )
    limits = parser.add_argument_group("verdict")
    add_limits(limits)
    limits.add_argument(
        "--target", metavar="NATS", type=share, default=0.01,
        help="with explain: mean difference that the advised pair may leave (%(default)s)",
    )  # fmt: skip
    ablation = parser.add_argument_group("attribution")
    ablation.add_argument(
        "--attribute", action="store_true", help="change one setting at a time and report which of them affect parity"
    )
    ablation.add_argument(
        "--setting", metavar="NAME", action="append", default=[], help="with --attribute: only this setting (repeatable)"
    )
    dump = parser.add_argument_group("dump")
    dump.add_argument("--tokens-of", metavar="FILE", type=Path, help="score the tokens of that dump, too")
    output = parser.add_argument_group("output")
    output.add_argument("--output", metavar="FOLDER", type=Path, help="write report.json and report.html")
    add_verbose(output)


def run_parity(options: argparse.Namespace) -> int:
    """Measures parity, or makes or compares dumps; 1 if a threshold is crossed."""
    action, *files = options.action or [""]
    if action == _COMPARE:
        return run_compare(options, files)
    if files or action not in ("", _DUMP, _EXPLAIN):
        raise UsageError(f"quirks parity takes nothing, 'explain', 'dump' or 'compare A B', not {' '.join(options.action)!r}")
    installed_only(options)
    quiet_engine(verbose=options.verbose)
    if action == _DUMP:
        return run_dump(options)
    if action == _EXPLAIN:
        return run_explain(options)
    if options.setting and not options.attribute:
        raise UsageError("--setting says which settings --attribute changes; give --attribute as well")
    config, folder = with_trainer(load_config(options), options.trainer), output_folder(options.output)
    console = Screen(stderr=options.json)
    with stages(console) as notify:
        report = asyncio.run(_measure(options, config, notify)).without_samples()
    if folder:
        from worker.lab.parity.report import write_report

        write_report(report, folder)
    if options.json:
        print(report.model_dump_json(indent=2))
    else:
        from worker.lab.parity.report import show_report

        show_report(console, report)
        if folder:
            console.say(f"written: report.html and report.json in {line(folder)}")
    return 0 if report.passed else 1


async def _measure(options: argparse.Namespace, config: GenerationConfig, notify: Notify) -> Report:
    from worker.lab.attribution import run as ablation
    from worker.lab.parity import run as parity

    chosen = parity.Options(
        scenarios=tuple(options.scenario),
        prompts=options.prompts,
        new_tokens=options.tokens,
        seed=options.seed,
        profile=options.profile,
        thresholds=tuple(options.threshold),
        planning=plan_options(options, config),
    )
    if options.attribute:
        return await ablation.run(config, chosen, settings=options.setting, notify=notify)
    return await parity.run(config, chosen, notify=notify)


# ---- explain


def with_trainer(config: GenerationConfig, name: str | None) -> GenerationConfig:
    """Returns a configuration with a trainer's defaults where it sets nothing.

    Raises:
        UsageError: There is no such trainer, or its defaults are not known.
    """
    values = {} if name is None else numerics(name)
    typed = config.train.model_fields_set  # also what is typed as null: no autocast
    return config.adjusted({slot: value for slot, value in values.items() if slot_named(slot).key not in typed})


def run_explain(options: argparse.Namespace) -> int:
    """Measures and prints a frontier; 0 whatever the difference is."""
    config, folder = with_trainer(load_config(options), options.trainer), output_folder(options.output)
    if folder:
        from worker.lab.parity.picture import check_matplotlib

        check_matplotlib()  # without it the minutes would be in vain
    from worker.lab.parity.explain import Explain

    console = Screen(stderr=options.json)
    with stages(console) as notify:
        asked = {"prompts": options.prompts, "new_tokens": options.tokens, "seed": options.seed, "target": options.target}
        explain = Explain(config, plan_options(options, config), **asked, notify=notify)
        found = asyncio.run(explain.run())
    text = found.model_dump_json(indent=2)
    if folder:
        from worker.lab.parity.picture import write_picture

        (folder / "frontier.json").write_text(text, encoding="utf-8")
        write_picture(found, folder)
    if options.json:
        print(text)
    else:
        show_frontier(console, found)
    return 0


def show_frontier(console: Screen, found: Frontier) -> None:
    """Prints the pairs, the costs of both sides, float16's range, and what to do."""
    from worker.lab.parity.frontier import LARGEST

    console.say(f"{line(found.model)} on {line(found.device)}, {found.tokens} tokens at temperature {found.temperature:g}")
    pairs = sorted(found.pairs, key=lambda pair: pair.mean_abs_delta)
    columns = ["trainer", "mean |Δ|", "largest", "KL k3", "cost", ""]
    console.grid("engine", columns, [(line(pair.engine.name), _cells(found, pair)) for pair in pairs])
    engines = [(line(side.name), (f"{1000 / side.seconds:.3g}", f"{side.memory:.2f}", f"{side.kv_bytes / 1e3:.3g}"))
               for side in found.engines if not side.failed]  # fmt: skip
    console.grid("engine", ["tokens/s", "memory, GB", "KV cache, kB/token"], engines)
    trainers = [(line(side.name), (f"{side.seconds:.3g}", f"{side.memory:.2f}")) for side in found.trainers]
    console.grid("trainer", ["step, s/1000 tokens", "memory, GB"], trainers)
    for side in found.engines:
        if side.failed:
            console.say(f"engine {line(side.name)}: {line(side.failed)}")
    layer, largest = found.range.largest
    console.say(
        f"largest activation {largest:.3g} in {line(layer)}, float16 ends at {LARGEST:.0f}; of {found.range.weights} weights "
        f"{found.range.beyond} are beyond that, and {found.range.below} below its smallest number"
    )
    if found.no_float16:
        console.say(f"float16 is not advised: {line(found.no_float16)}")
    console.say(f"[bold]{line(found.advice)}[/]")


def _cells(found: Frontier, pair: Pair) -> tuple[str, ...]:
    sizes = f"{pair.mean_abs_delta:.2g}", f"{pair.max_abs_delta:.2g}", f"{pair.kl_k3:.2g}"
    if pair.nonfinite:
        sizes = f"{pair.nonfinite} no numbers", "", ""
    mark = "now" if pair == found.now else "*" if pair == found.best else "no" if not found.can_be_advised(pair) else ""
    return line(pair.trainer.name), *sizes, f"{pair.cost / found.now.cost:.2f}", mark


COMMAND = Command(
    "compare the logprobs of rollout and trainer; find the setting that makes them differ",
    run_parity,
    add_arguments,
    describes_run=True,
)
