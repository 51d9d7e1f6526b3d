"""The frontier as a picture: cost against difference, and the model's activations against float16's range."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import UsageError
from quirks_core.base.text import one_line
from worker.lab.parity.frontier import LARGEST, Frontier, Pair
from worker.lab.parity.notation import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours by role. Blue and orange differ with every kind of colour blindness.
COLOURS = {
    "ink": "#1b1f24", "muted": "#5c6670", "line": "#d5dae0", "good": "#2a6f9e", "bad": "#c8500a", "faint": "#9fc7e1",
    "paper": "#ffffff",
}  # fmt: skip


@contextmanager
def new_figure() -> Iterator[Figure]:
    """Yields an empty figure of 1600 x 900 pixels, whose file is the same every time, whatever the user's matplotlibrc sets.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("the picture needs matplotlib: pip install 'model-quirks[parity]'") from error
    style: Any = {
        # The backend stays as the caller has it.
        **{name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")},
        "svg.hashsalt": "parity",
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans"],
        "font.size": 13,
        "text.parse_math": False,
        "text.color": COLOURS["ink"],
        "axes.labelcolor": COLOURS["muted"],
        "axes.edgecolor": COLOURS["line"],
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": COLOURS["line"],
        "ytick.color": COLOURS["line"],
        "xtick.labelcolor": COLOURS["muted"],
        "ytick.labelcolor": COLOURS["muted"],
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a missing glyph is drawn as a box
        yield Figure(figsize=(16, 9), layout="constrained")


def write_picture(found: Frontier, folder: Path) -> None:
    """Writes ``frontier.svg`` and ``frontier.png``.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with new_figure() as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 1))
        _draw_pairs(left, found)
        _draw_layers(right, found)
        figure.suptitle(textwrap.fill(one_line(found.advice), 130), x=0.01, ha="left", fontsize=14, color=COLOURS["good"])
        versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
        origin = f"{found.model} on {found.device}; {versions}; {found.tokens} tokens at temperature {found.temperature:g}"
        figure.supxlabel(one_line(origin), x=0.01, ha="left", fontsize=11.5, color=COLOURS["muted"])
        figure.savefig(folder / "frontier.svg", metadata={"Date": None})
        metadata = {"Software": None}
        figure.savefig(folder / "frontier.png", dpi=100, facecolor=COLOURS["paper"], metadata=metadata)


def _draw_pairs(axes: Axes, found: Frontier) -> None:
    """Draws a mark for each pair; joins those on the edge, and names its ends, the run as it is and the best pair."""
    now, best, edge = found.now, found.best, found.edge
    place = {pair.name: (pair.cost / now.cost, max(pair.mean_abs_delta, 1e-7)) for pair in found.pairs}
    axes.plot(*zip(*(place[pair.name] for pair in edge), strict=True), "-", color=COLOURS["faint"], linewidth=2, zorder=1)
    for pair in found.pairs:
        axes.plot(*place[pair.name], **_mark(found, pair), linestyle="", zorder=2)
    for pair in {pair.name: pair for pair in (now, best, edge[0], edge[-1]) if pair is not None}.values():
        what = {now.name: " (now)", best.name if best else "": " (take this)"}.get(pair.name, "")
        text = f"{pair.name}{what}: {number(pair.mean_abs_delta)}"
        weight, below = ("bold", 5) if what else ("normal", -15)
        axes.annotate(text, place[pair.name], (10, below), textcoords="offset points", fontsize=11.5, fontweight=weight)
    axes.axhline(found.target, color=COLOURS["muted"], linewidth=0.8, linestyle="--")
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
    axes.set_title("a mark for each pair: ● can be had, ✕ float16 overflows or is refused", loc="left", color=COLOURS["ink"])


def _mark(found: Frontier, pair: Pair) -> dict[str, Any]:
    if not found.can_be_advised(pair):
        return {"marker": "x", "color": COLOURS["muted"], "markersize": 6}
    if pair == found.best:
        return {"marker": "o", "color": COLOURS["good"], "markersize": 15}
    return {
        "marker": "o",
        "color": COLOURS["bad" if pair == found.now else "faint"],
        "markersize": 15 if pair == found.now else 8,
    }


def _draw_layers(axes: Axes, found: Frontier) -> None:
    """Draws the largest activation of each layer, in the order of the model, against where float16 ends."""
    layers = list(found.range.layers.items())
    values = [value if math.isfinite(value) and value > 0 else math.nan for _, value in layers]
    axes.plot(values, range(len(values)), "o-", color=COLOURS["good"], markersize=4)
    axes.axvline(LARGEST, color=COLOURS["bad"], linewidth=1.2)
    axes.text(LARGEST, -0.6, "float16 ends ", ha="right", va="center", color=COLOURS["bad"])
    every = 1 + len(layers) // 24
    axes.set_yticks(range(0, len(layers), every), [one_line(name) for name, _ in layers][::every], fontsize=10)
    axes.set(xscale="log", ylim=(len(layers) - 0.5, -1.2), xlabel="largest |activation| in float32")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.minorticks_off()
    title = (
        f"{found.range.beyond} weights beyond its end,\n{found.range.below / found.range.weights:.2g} below its smallest number"
    )
    axes.set_title(title, loc="left", fontsize=11.5, color=COLOURS["ink"])
