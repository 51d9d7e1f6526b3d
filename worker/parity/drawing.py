"""What the plots of a parity report consist of: one function for each kind, drawn on axes of matplotlib."""

from __future__ import annotations

import bisect
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quirks_core.errors import UsageError
from worker.parity.figures import bound, heat, label, level_of, limits_of, number, taken, verdicts_of, visible
from worker.parity.records import Bin, Histogram, Result
from worker.parity.summary import Tried, changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours of a picture. Blue and orange stay apart for every kind of colour blindness.
PRINT = {"ink": "#1b1f24", "muted": "#5c6670", "line": "#d5dae0", "good": "#2a6f9e", "bad": "#c8500a", "paper": "#ffffff"}
#: Fill of a cell by `heat`; the text on the last one is white.
_HEAT = ("#f3f7fa", "#e3eef6", "#c6ddec", "#9fc7e1", "#fbdcbc", "#f2a766", "#c8500a")
_MARKS = {"fail": " ✗", "warn": " !", "ok": "", None: ""}
#: Metrics of the heat map, those that tell most first.
_TELLING = (
    "mean_abs_delta",
    "max_abs_delta",
    "mean_exp_abs_delta",
    "mean_abs_dprob",
    "kl_k3",
    "ratio_mean",
    "clip_rate",
    "ess",
)
_COLUMNS, _STEPS = 6, 6
#: Characters of labels that fit side by side below a plot.
_LABELS = 44

Colours = Mapping[str, str]


@contextmanager
def drawing(salt: str, size: tuple[float, float], text: float) -> Iterator[Figure]:
    """Gives an empty figure that comes out with the same bytes every time.

    Args:
        salt: What the names inside an SVG are made of.
        size: Width and height in inches.
        text: Size of the text in points.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("the plots need matplotlib: pip install 'model-quirks[parity]'") from error
    style: Any = {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans"],
        "font.size": text,
        "axes.linewidth": 0.6,
        "text.parse_math": False,
    }
    # What the user has in a matplotlibrc changes nothing; the backend is not ours to touch.
    defaults = {name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")}
    with mpl.rc_context({**defaults, **style}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box will do
        yield Figure(figsize=size)


def cut(text: str, width: int) -> str:
    """Shortens a text to so many characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def draw_histogram(axes: Axes, histogram: Histogram, after: Histogram | None, colours: Colours, *, changed: str = "") -> None:
    """Draws tokens by log ratio; if `after` is given, as an outline over them, and `changed` says what it is after."""
    _bare(axes, colours)
    if not sum(histogram.counts):
        _say(axes, "no tokens", colours)
        return
    wide = histogram if after is None else max(histogram, after, key=lambda item: item.edges[-1])
    before = axes.stairs(
        _rebinned(histogram, wide.edges), wide.edges, fill=True, linewidth=0, color=colours["good" if after is None else "bad"]
    )
    shown = [histogram]
    if after is not None:
        shown.append(after)
        line = axes.stairs(_rebinned(after, wide.edges), wide.edges, linewidth=1.4, color=colours["good"])
        before.set_alpha(0.75)
        _legend(axes, colours, handles=[before, line], labels=["as configured", changed])
    axes.axvline(0, color=colours["ink"], linewidth=0.6)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    reach = max(max(map(_reach, shown)), (wide.edges[-1] - wide.edges[0]) / (len(wide.edges) - 1))
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("log ratio: trainer - rollout, nats")
    axes.set_ylabel("tokens")
    _log_ticks(axes)
    axes.xaxis.set_major_formatter(_tick)
    axes.locator_params(axis="x", nbins=5)


def draw_bins(axes: Axes, bins: Sequence[Bin], axis: str, colours: Colours) -> None:
    """Draws mean and largest absolute difference by the parts of a breakdown; `axis` says what the parts are of."""
    _bare(axes, colours)
    places = range(len(bins))
    mean = [_positive(item.mean_abs_delta) for item in bins]
    largest = [_positive(item.max_abs_delta) for item in bins]
    if all(map(math.isnan, largest)):
        _say(axes, "no difference" if any(item.tokens for item in bins) else "no tokens", colours)
        return
    axes.vlines(places, mean, largest, color=colours["line"], linewidth=2.2)
    size = 3.2 if len(bins) > 1 else 4.5
    axes.plot(places, largest, "o", color=colours["bad"], markersize=size, label="max")
    axes.plot(places, mean, "o", color=colours["good"], markersize=size, label="mean")
    axes.set_yscale("log")
    _set_decade(axes, [value for value in (*mean, *largest) if value > 0])
    _log_ticks(axes)
    axes.grid(axis="y", color=colours["line"], linewidth=0.4)
    axes.set_axisbelow(True)
    step = 1 + (len(bins) - 1) // 10
    labels = [visible(item.label) for item in bins][::step]
    turned: dict[str, Any] = (
        {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, labels)) > _LABELS else {}
    )
    axes.set_xticks(list(places)[::step], labels, **turned)
    axes.set_xlim(-0.6, len(bins) - 0.4)
    axes.set_xlabel(axis)
    axes.set_ylabel("|Δ|, nats")
    _legend(axes, colours)


def draw_heat_map(axes: Axes, results: Sequence[Result]) -> None:
    """Draws scenarios by the metrics that tell most; a colour says how much of its limit a value takes."""
    names = _columns(results)
    axes.set_xlim(0, max(len(names), 1))
    axes.set_ylim(max(len(results), 6), 0)
    axes.set_yticks([row + 0.5 for row in range(len(results))], [cut(visible(item.scenario), 19) for item in results])
    axes.set_xticks([place + 0.5 for place in range(len(names))], [_heading(results, name) for name in names], linespacing=1.4)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=8, labelcolor=PRINT["ink"], labelsize=13)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row, result in enumerate(results):
        if result.status == "measured":
            _draw_row(axes, row, result, names)
        else:
            text = cut(visible(f"{result.status}: {result.reason}"), 64)
            colour = PRINT["bad" if result.status == "failed" else "muted"]
            axes.text(0.04, row + 0.5, text, va="center", color=colour)


def _draw_row(axes: Axes, row: int, result: Result, names: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    for place, name in enumerate(names):
        if name not in result.metrics:
            continue
        verdicts, level = verdicts_of(result, name), level_of(result, name)
        step = heat(taken(verdicts[0])) if verdicts else None
        if step is not None:
            axes.add_patch(Rectangle((place + 0.02, row + 0.04), 0.96, 0.92, facecolor=_HEAT[step], edgecolor="none"))
        ink = PRINT["paper" if step == len(_HEAT) - 1 else "ink"]
        weight = "bold" if level == "fail" and result.gates else "normal"
        text = number(result.metrics[name]) + _MARKS[level]
        axes.text(place + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontweight=weight, fontsize=13.5)


def draw_ladder(axes: Axes, ladder: Sequence[Tried]) -> int:
    """Draws how much of its limit a metric takes before and after each change, and returns for how many there was room."""
    _bare(axes, PRINT)
    axes.spines["left"].set_visible(False)
    shown = ladder[:_STEPS]
    values = [
        value for item in shown for value in (item.strain_before, item.strain_after) if value > 0 and math.isfinite(value)
    ]
    low, high = min([*values, 0.5]) / 2, max([*values, 2.0]) * 2
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(_STEPS - 0.4, -0.6)
    axes.set_yticks([])
    axes.xaxis.minorticks_off()
    axes.xaxis.set_major_formatter(_tick)
    axes.set_xlabel("share of the limit")
    axes.axvline(1, color=PRINT["ink"], linewidth=0.8)
    for row, item in enumerate(shown):
        colour = {"restores": PRINT["good"], "worsens": PRINT["bad"]}.get(item.effect, PRINT["muted"])
        ends = [value if math.isnan(value) else min(max(value, low), high) for value in (item.strain_before, item.strain_after)]
        axes.plot(ends, [row, row], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.4)
        axes.plot(
            ends[:1], [row], "o", markersize=9, markerfacecolor=PRINT["paper"], color=colour, markeredgewidth=1.6, clip_on=False
        )
        axes.plot(ends[1:], [row], "o", markersize=9, color=colour, clip_on=False)
        ink = PRINT["ink" if item.effect in ("restores", "worsens") else "muted"]
        place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": "right"}
        parts = changes(item.step)
        names = " + ".join(name.rpartition(".")[2] for name, _, _ in parts)
        axes.text(-0.05, row, cut(names, 24), va="bottom", color=ink, **place)
        both = " + ".join(f"{before} → {after}" for _, before, after in parts)
        under = "not tried" if item.effect == "error" else both
        axes.text(-0.05, row + 0.06, cut(under, 32), va="top", color=PRINT["muted"], fontsize=10.5, **place)
    return len(shown)


def _bare(axes: Axes, colours: Colours) -> None:
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(colours["line"])
    axes.tick_params(color=colours["line"], labelcolor=colours["muted"], which="both", length=2.5, width=0.6)
    axes.xaxis.label.set_color(colours["muted"])
    axes.yaxis.label.set_color(colours["muted"])


def _legend(axes: Axes, colours: Colours, **entries: Any) -> None:
    """Writes the legend above the plot, where nothing can be under it."""
    legend = axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=2, frameon=False, handletextpad=0.4, columnspacing=1.0, **entries
    )
    for text in legend.get_texts():
        text.set_color(colours["muted"])


def _say(axes: Axes, text: str, colours: Colours) -> None:
    """Writes what is to be said instead of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=colours["muted"])


def _set_decade(axes: Axes, values: Sequence[float]) -> None:
    """Shows at least a power of ten: on a closer look every constant is a landscape."""
    low, high = min(values) / 1.6, max(values) * 1.6
    missing = max(10 * low / high, 1.0) ** 0.5
    axes.set_ylim(low / missing, high * missing)


def _log_ticks(axes: Axes) -> None:
    """Labels few values of a logarithmic axis, and more than one also if it spans less than a power of ten."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,), numticks=6))
    axes.yaxis.set_major_formatter(_tick)
    axes.yaxis.minorticks_off()


def _tick(value: float, _place: float) -> str:
    return re.sub(r"e([+-])0*", lambda match: "e" + match[1].strip("+"), f"{value:g}")


def _rebinned(histogram: Histogram, edges: Sequence[float]) -> list[int]:
    """Returns the counts by other edges, each bin counted where its middle is: noise has no width on the scale of a fault."""
    counts = [0] * (len(edges) - 1)
    for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        place = bisect.bisect_right(edges, (low + high) / 2) - 1
        counts[min(max(place, 0), len(counts) - 1)] += count
    return counts


def _reach(histogram: Histogram) -> float:
    """Returns how far from 0 there are tokens."""
    sides = zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False)
    return max((max(abs(low), abs(high)) for low, high, count in sides if count), default=0.0) * 1.05


def _positive(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else math.nan


def _columns(results: Sequence[Result]) -> list[str]:
    judged = {verdict.metric for verdict in limits_of(results)}
    known = judged or {name for result in results for name in result.metrics}
    names = [name for name in _TELLING if name in known] + sorted(known - set(_TELLING))
    return names[:_COLUMNS]


def _heading(results: Sequence[Result], metric: str) -> str:
    limits = limits_of(results, metric)
    return f"{label(metric)}\n{bound(limits[0]) if limits else 'no limit'}"
