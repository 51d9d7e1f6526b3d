"""``quirks parity explain``: which part of the difference between rollout and trainer comes from what, and what removes it."""

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
    from worker.lab.parity.explain import Explanation, Remains
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
    """Measures and prints an explanation; 0 whatever the difference is."""
    config, folder = with_trainer(load_config(options), options.trainer), output_folder(options.output)
    console = Screen(stderr=options.json)
    with stages(console) as notify:
        found = asyncio.run(_explained(options, config, notify))
    text = found.model_dump_json(indent=2)
    if folder:
        (folder / "explanation.json").write_text(text, encoding="utf-8")
    if options.json:
        print(text)
    else:
        show(console, found)
    return 0


async def _explained(options: argparse.Namespace, config: GenerationConfig, notify: Notify) -> Explanation:
    from worker.lab.parity.explain import Explain

    taken = {"prompts": options.prompts, "num_prompts": options.num_prompts, "new_tokens": options.tokens}
    planning = plan_options(options, config)
    return await Explain(config, planning, **taken, seed=options.seed, device=options.trainer_device, notify=notify).run()


def show(console: Screen, found: Explanation) -> None:
    """Prints an explanation."""
    console.say(f"engine: {line(found.engine)}; trainer: {line(found.trainer)}; on {line(found.device)}")
    console.say(
        f"mean |rollout - trainer| {found.mean_abs_delta:.2g} nats (largest {found.max_abs_delta:.2g}), "
        f"{found.tokens} tokens at temperature {found.temperature:g}. It consists of:"
    )
    parts = sorted(found.parts, key=lambda part: -part.share)
    console.grid("part", ["share", "alone"], [(line(part.what), (f"{part.share:.2g}", f"{part.alone:.2g}")) for part in parts])
    first = found.remains[0]
    rows = [(f"{line(row.engine)}; {line(row.trainer)}", _cells(row, first)) for row in found.remains]
    columns = ["mean |Δ|", "largest", "time", "memory", "scoring", "step"]
    console.grid("what remains, with engine; trainer", columns, rows)
    console.say(
        "relative to the first row: time of the rollouts, memory of the engine's weights and KV cache, time of the scoring and "
        "of a training step (forward and backward pass over one sequence)"
    )
    for name, why in found.failed.items():
        console.say(f"the engine {line(name)} did not start, so its part is in the next one: {line(why)}")
    console.say(f"least remains with {_setting(found.best)}")
    if found.next_best:
        console.say(f"then with {_setting(found.next_best)}")
    for what, value in found.beside.items():
        console.say(f"{line(what)}: {value:.2g} nats")
    console.say("; ".join(f"{name} {value:.3g}" for name, value in found.whole.items()))


def _setting(row: Remains) -> str:
    return f"the engine {line(row.engine)} and the trainer {line(row.trainer)}: {row.mean_abs_delta:.2g} nats"


def _cells(row: Remains, first: Remains) -> tuple[str, ...]:
    sizes = f"{row.mean_abs_delta:.2g}", f"{row.max_abs_delta:.2g}"
    times = f"{row.seconds / first.seconds:.2f}", f"{row.memory:g}", f"{row.trainer_seconds / first.trainer_seconds:.2f}"
    return *sizes, *times, f"{row.step_seconds / first.step_seconds:.2f}"
