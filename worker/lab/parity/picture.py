"""The frontier as a picture: cost against difference, and the model's activations against float16's range."""

from __future__ import annotations

import math
import textwrap
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import UsageError
from quirks_core.base.text import one_line
from worker.lab.parity.frontier import LARGEST, Frontier, Pair
from worker.lab.parity.notation import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours by role. Blue and orange differ with every kind of colour blindness.
_COLOURS = {"muted": "#5c6670", "good": "#2a6f9e", "bad": "#c8500a", "faint": "#9fc7e1"}


#: What keeps names as they are and the files the same every time.
_STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 13,
    "svg.fonttype": "none",
    "svg.hashsalt": "parity",
    "text.parse_math": False,
}


def check_matplotlib() -> None:
    """Makes sure that a picture can be drawn.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("the picture needs matplotlib: pip install '.[parity]' in a clone of model-quirks")


def write_picture(found: Frontier, folder: Path) -> None:
    """Writes ``frontier.svg`` and ``frontier.png``."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a missing glyph is drawn as a box
        figure = Figure(figsize=(16, 9), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 1))
        _draw_pairs(left, found)
        _draw_layers(right, found)
        figure.suptitle(textwrap.fill(one_line(found.advice), 130), x=0.01, ha="left", fontsize=14, color=_COLOURS["good"])
        versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
        origin = f"{found.model} on {found.device}; {versions}; {found.tokens} tokens at temperature {found.temperature:g}"
        figure.supxlabel(one_line(origin), x=0.01, ha="left", fontsize=11.5, color=_COLOURS["muted"])
        figure.savefig(folder / "frontier.svg", metadata={"Date": None})
        figure.savefig(folder / "frontier.png", dpi=100, metadata={"Software": None})


def _draw_pairs(axes: Axes, found: Frontier) -> None:
    """Draws a mark for each pair; joins those on the edge, and names its ends, the run as it is and the best pair."""
    now, best, edge = found.now, found.best, found.edge
    place = {pair.name: (pair.cost / now.cost, max(pair.mean_abs_delta, 1e-7)) for pair in found.pairs}
    axes.plot(*zip(*(place[pair.name] for pair in edge), strict=True), "-", color=_COLOURS["faint"], linewidth=2, zorder=1)
    for pair in found.pairs:
        axes.plot(*place[pair.name], **_mark(found, pair), linestyle="", zorder=2)
    for pair in {pair.name: pair for pair in (now, best, edge[0], edge[-1]) if pair is not None}.values():
        what = {now.name: " (now)", best.name if best else "": " (take this)"}.get(pair.name, "")
        text = f"{pair.name}{what}: {number(pair.mean_abs_delta)}"
        weight, below = ("bold", 5) if what else ("normal", -15)
        axes.annotate(text, place[pair.name], (10, below), textcoords="offset points", fontsize=11.5, fontweight=weight)
    axes.axhline(found.target, color=_COLOURS["muted"], linewidth=0.8, linestyle="--")
    axes.text(0.995, found.target, f"target {found.target:g}", transform=axes.get_yaxis_transform(), ha="right", va="bottom")
    axes.set(
        xscale="log", yscale="log", xlabel="cost: GB · s for the same tokens, as a multiple of now", ylabel="mean |Δ|, nats"
    )
    axes.margins(x=0.3)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    sizes = [size for _, size in place.values()]
    axes.yaxis.set_minor_formatter("{x:g}" if max(sizes) < 100 * min(sizes) else "")
    axes.set_title("a mark for each pair: ● can be had, ✕ float16 overflows or is refused", loc="left")


def _mark(found: Frontier, pair: Pair) -> dict[str, Any]:
    if not found.can_be_advised(pair):
        return {"marker": "x", "color": _COLOURS["muted"], "markersize": 6}
    colour = "good" if pair == found.best else "bad" if pair == found.now else "faint"
    return {"marker": "o", "color": _COLOURS[colour], "markersize": 8 if colour == "faint" else 15}


def _draw_layers(axes: Axes, found: Frontier) -> None:
    layers = list(found.range.layers.items())
    values = [value if math.isfinite(value) and value > 0 else math.nan for _, value in layers]
    axes.plot(values, range(len(values)), "o-", color=_COLOURS["good"], markersize=4)
    axes.axvline(LARGEST, color=_COLOURS["bad"], linewidth=1.2)
    axes.text(LARGEST, -0.6, "float16 ends ", ha="right", va="center", color=_COLOURS["bad"])
    every = 1 + len(layers) // 24
    axes.set_yticks(range(0, len(layers), every), [one_line(name) for name, _ in layers][::every], fontsize=10)
    axes.set(xscale="log", ylim=(len(layers) - 0.5, -1.2), xlabel="largest |activation| in float32")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.minorticks_off()
    title = (
        f"{found.range.beyond} weights beyond its end,\n{found.range.below / found.range.weights:.2g} below its smallest number"
    )
    axes.set_title(title, loc="left", fontsize=11.5)
