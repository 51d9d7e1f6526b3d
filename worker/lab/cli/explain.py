"""``quirks parity explain``: which pairs of dtypes the run can have, what each leaves of the difference, and what it costs."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from quirks_core.cli.options import load_config, plan_options
from quirks_core.cli.screen import Screen, line
from quirks_core.configuration.slots import slot_named
from quirks_core.facts.trainers import numerics
from worker.lab.cli.arguments import output_folder
from worker.lab.cli.display import stages

if TYPE_CHECKING:
    from quirks_core.configuration.config import GenerationConfig
    from worker.lab.parity.frontier import Frontier, Pair
    from worker.lab.parity.records import Notify


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
        from worker.lab.parity.picture import new_figure

        with new_figure():  # without matplotlib the minutes would be in vain
            pass
    console = Screen(stderr=options.json)
    with stages(console) as notify:
        found = asyncio.run(_measured(options, config, notify))
    text = found.model_dump_json(indent=2)
    if folder:
        from worker.lab.parity.picture import write_picture

        (folder / "frontier.json").write_text(text, encoding="utf-8")
        write_picture(found, folder)
    if options.json:
        print(text)
    else:
        show(console, found)
    return 0


async def _measured(options: argparse.Namespace, config: GenerationConfig, notify: Notify) -> Frontier:
    from worker.lab.parity.explain import Explain

    taken = {"prompts": options.prompts, "num_prompts": options.num_prompts, "new_tokens": options.tokens}
    planning = plan_options(options, config)
    asked = {"seed": options.seed, "target": options.target, "notify": notify}
    return await Explain(config, planning, **taken, **asked).run()


def show(console: Screen, found: Frontier) -> None:
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
