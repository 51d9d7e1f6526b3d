"""A picture of a training run's weight updates: their norms by layer and step, and what of each arrived in the engine."""

from __future__ import annotations

import html
import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.base.text import printable
from worker.lab.drawing import COLOURS, as_png, as_svg, new_figure, page_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LAYER = re.compile(r"^(.*?\.\d+)\.")
#: Colours of norms, from small to large: by decades below the largest.
_STEPS = ("h0", "h1", "h2", "h3", "good")


class Step(Record):
    """A line of `worker.refit.LedgerCallback`'s file."""

    step: int
    arrived: float | None = None
    changed_share: float | None = None
    norms: dict[str, float] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    verdict: str = ""


def read_steps(file: Path) -> list[Step]:
    """Reads the file.

    Raises:
        UsageError: There is no such file, it holds something else, or no step with a norm.
    """
    try:
        steps = [Step.model_validate(json.loads(row)) for row in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{file} is no file of LedgerCallback(trainer, file=…): a line of JSON for each step") from None
    if not any(step.norms for step in steps):
        raise UsageError(f"{file} holds no update: two steps are needed")
    return steps


def write_picture(steps: list[Step], folder: Path) -> list[Path]:
    """Writes ``updates.html`` and ``updates.png`` into a folder; returns their paths.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with new_figure((16, 9), 13) as figure:
        panels = figure.subplot_mosaic([["layers"], ["lines"]], height_ratios=(3, 1))
        _draw_layers(panels["layers"], steps)
        _draw_lines(panels["lines"], steps)
        png, svg = as_png(figure), as_svg(figure, "updates", "Norm of each layer's update by step; what did not arrive")
    first = next((f"step {step.step}: {step.verdict}" for step in steps if step.verdict), "")
    summary = (
        f"The engine does not have the policy, first at {html.escape(printable(first))}"
        if first
        else ("The policy arrived at every step.")
    )
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>Weight updates</title><style>{page_style()}\nbody {{ background: var(--paper); color: var(--ink); "
        f"font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; }} svg {{ width: 100%; height: auto; }}"
        f"</style></head><body><h1>Weight updates</h1><p>{summary}</p>{svg}</body></html>\n"
    )
    paths = [folder / "updates.html", folder / "updates.png"]
    paths[0].write_text(page, encoding="utf-8")
    paths[1].write_bytes(png)
    return paths


def _draw_layers(axes: Axes, steps: list[Step]) -> None:
    """Draws layers by steps; ✗ marks what did not arrive."""
    from matplotlib.patches import Rectangle

    table: dict[str, dict[int, float]] = defaultdict(dict)
    lost: set[tuple[str, int]] = set()
    for column, step in enumerate(steps):
        for name, norm in step.norms.items():
            table[_layer(name)][column] = math.hypot(norm, table[_layer(name)].get(column, 0.0))
        lost |= {(_layer(name), column) for name in step.missing}
    names = sorted(table.keys() | {name for name, _ in lost}, key=_order)
    largest = max((norm for row in table.values() for norm in row.values()), default=0.0)
    for row, name in enumerate(names):
        for column in range(len(steps)):
            place = -1
            if norm := table[name].get(column, 0.0):
                place = max(0, len(_STEPS) - 1 - int(math.log10(largest / norm)))
                axes.add_patch(Rectangle((column, row), 1, 1, facecolor=COLOURS[_STEPS[place]], edgecolor="none"))
            if (name, column) in lost:
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    "✗",
                    ha="center",
                    va="center",
                    color=COLOURS["paper" if place == len(_STEPS) - 1 else "bad"],
                )
    axes.set(xlim=(0, len(steps)), ylim=(len(names), 0))
    every = 1 + len(names) // 24
    axes.set_yticks([row + 0.5 for row in range(0, len(names), every)], names[::every])
    axes.set_xticks([])
    axes.set_title(
        f"L2 norm of each layer's update, largest {largest:.3g} (a colour per power of ten; blank: none); ✗ did not arrive",
        loc="left",
        color=COLOURS["ink"],
    )


def _draw_lines(axes: Axes, steps: list[Step]) -> None:
    """Draws the shares that arrived and that changed, and the norm of the whole update."""
    places = [column + 0.5 for column in range(len(steps))]
    rows: dict[str, tuple[str, list[Any]]] = {
        "arrived": ("good", [step.arrived for step in steps]),
        "changed in the engine": ("bad", [step.changed_share for step in steps]),
    }
    for name, (colour, values) in rows.items():
        shown = [math.nan if value is None else value for value in values]
        axes.plot(places, shown, "o-", color=COLOURS[colour], markersize=4, label=name)
    every = 1 + len(steps) // 20
    axes.set(xlim=(0, len(steps)), ylim=(-0.05, 1.08), xlabel="step", ylabel="share of tensors")
    axes.set_xticks(places[::every], [str(step.step) for step in steps][::every])
    axes.legend(loc="lower right", ncols=2)


def _layer(name: str) -> str:
    match = _LAYER.match(name)
    return match[1] if match else name.rpartition(".")[0] or name


def _order(name: str) -> tuple[bool, str, int]:
    stack, _, number = name.rpartition(".")
    return (not number.isdigit(), stack, int(number)) if number.isdigit() else (True, name, 0)
