"""The figures of a report, as SVG in the colours of the page, and the overview also as PNG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from worker.lab.drawing import COLOURS, as_png, as_svg, new_figure
from worker.lab.parity.notation import bound, label, plain, visible
from worker.lab.parity.records import Bin, Histogram, Report, Result, worst_level
from worker.lab.parity.summary import Tried, brief, changes, headline, heat, limit_of, limits_of, metrics_of, tried, value_of
from worker.lab.parity.thresholds import strain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = {"fail": " ✗", "rounding": " ≈", "warn": " !", "ok": ""}
#: Metrics of the heat map, the most informative first.
_INFORMATIVE = ("mean_abs_delta", "max_abs_delta", "mean_exp_abs_delta", "mean_abs_dprob", "kl_k3", "ratio_mean", "clip_rate")
_COLUMNS, _STEPS = 6, 6


class Overview(NamedTuple):
    """One figure of a whole report: an ``<svg>`` element, and a PNG of 1600 x 900 pixels."""

    svg: str
    png: bytes


def overview(report: Report) -> Overview:
    """Draws the heat map, the ratios of the worst scenario, and the effect of each setting that was tried.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with new_figure((16, 9), 13) as figure:
        panels = figure.subplot_mosaic([["heat", "top"], ["heat", "bottom"]], width_ratios=(4, 3))
        head = headline(report)
        verdict = _cut(head.verdict.partition(";")[0].rstrip("."), 108)
        advice = textwrap.fill(head.advice, 150, max_lines=2, placeholder=" …")
        colour = COLOURS["good" if head.level == "ok" else "bad"]
        place: dict[str, Any] = {"x": 0.01, "ha": "left", "linespacing": 1.4}
        figure.suptitle(f"{verdict}\n{advice}\n", fontsize=14, color=colour, **place)
        figure.supxlabel(_cut(_origin(report), 160), fontsize=11.5, color=COLOURS["muted"], **place)
        _draw_heat_map(panels["heat"], report)
        focus, steps = _focus(report), tried(report)
        if focus is None or focus.histogram is None:
            _write_note(panels["top"], "no figures")
        else:
            changed, after = _cure(report, focus) or ("", None)
            _draw_histogram(panels["top"], focus.histogram, after, changed)
            _title(panels["top"], f"{focus.scenario}: policy ratio, token by token")
        if steps:
            _draw_steps(panels["bottom"], steps[:_STEPS])
            rest = f", {_STEPS} of {len(steps)}" if len(steps) > _STEPS else ""
            _title(panels["bottom"], f"one setting changed{rest}: ○ before, ● after")
        else:
            _draw_bins(panels["bottom"], focus.by_position if focus else (), "position among the generated tokens")
        return Overview(as_svg(figure, "overview", visible(f"Overview of the parity of {report.model}")), as_png(figure))


def breakdown(result: Result, name: str) -> str:
    """Draws one scenario's tokens by log ratio, and differences by position and by probability.

    Args:
        result: The scenario.
        name: Name of the figure, unique on the page.

    Returns:
        An ``<svg>`` element in the colours of the page.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with new_figure((12, 2.6), 8) as figure:
        left, middle, right = figure.subplots(1, 3)
        _draw_histogram(left, result.histogram)
        _draw_bins(middle, result.by_position, "position among the generated tokens")
        _draw_bins(right, result.by_probability, "trainer's probability of the token")
        label = f"Tokens of {result.scenario} by log ratio; differences by position and by probability"
        return as_svg(figure, name, visible(label))


# ---- parts


def _draw_histogram(axes: Axes, histogram: Histogram | None, after: Histogram | None = None, changed: str = "") -> None:
    """Draws tokens by log ratio; if `after` is given, as an outline over them, and `changed` names what it is after."""
    if histogram is None or not sum(histogram.counts):
        _write_note(axes, "no tokens")
        return
    colour = COLOURS["good" if after is None else "bad"]
    axes.stairs(histogram.counts, histogram.edges, fill=True, color=colour, linewidth=0, label="as configured")
    if after is not None:
        axes.stairs(after.counts, after.edges, color=COLOURS["good"], linewidth=1.4, label=_cut(changed, 26))
        axes.legend(loc="upper right")
        axes.set_ylim(top=8 * max(*histogram.counts, *after.counts))  # room for the legend
    reach = max(abs(edge) for item in (histogram, after) if item for edge in item.edges)
    axes.set(yscale="log", xlim=(-reach, reach), xlabel="log ratio: trainer - rollout, nats", ylabel="tokens")
    axes.set_ylim(bottom=0.7)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.minorticks_off()
    axes.locator_params(axis="x", nbins=5)


def _draw_bins(axes: Axes, bins: Sequence[Bin], axis: str) -> None:
    """Draws mean and largest absolute difference by the parts of a breakdown; `axis` names what the parts are of."""
    rows = {
        name: [value if math.isfinite(value) and value > 0 else math.nan for value in values]
        for name, values in (("max", [item.max_abs_delta for item in bins]), ("mean", [item.mean_abs_delta for item in bins]))
    }
    shown = [value for values in rows.values() for value in values if value > 0]
    if not shown:
        _write_note(axes, "no difference" if any(item.tokens for item in bins) else "no tokens")
        return
    for name, colour in (("max", "bad"), ("mean", "good")):
        axes.plot(range(len(bins)), rows[name], "o", color=COLOURS[colour], markersize=4, label=name)
    # At least a power of ten, because a smaller range would magnify rounding.
    middle, half = math.sqrt(min(shown) * max(shown)), max(math.sqrt(max(shown) / min(shown)) * 1.6, 10**0.5)
    axes.set(yscale="log", ylim=(middle / half, middle * half), xlim=(-0.6, len(bins) - 0.4), xlabel=axis, ylabel="|Δ|, nats")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.minorticks_off()
    axes.grid(axis="y", color=COLOURS["line"], linewidth=0.4)
    step = 1 + (len(bins) - 1) // 10
    axes.set_xticks(range(0, len(bins), step), [visible(item.label) for item in bins][::step], rotation=30, ha="right")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=2)


def _draw_heat_map(axes: Axes, report: Report) -> None:
    """Draws scenarios by the most informative metrics; the colour shows the share of the limit that a value reaches."""
    results = report.results
    judged = {verdict.metric for verdict in limits_of(results)} or set(metrics_of(results))
    names = [*(name for name in _INFORMATIVE if name in judged), *sorted(judged - set(_INFORMATIVE))][:_COLUMNS]
    axes.set(xlim=(0, max(len(names), 1)), ylim=(max(len(results), 6), 0))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=COLOURS["ink"])
    axes.xaxis.tick_top()
    headings = [(label(name), *map(bound, limits_of(results, name)[:1])) for name in names]
    axes.set_xticks([place + 0.5 for place in range(len(names))], ["\n".join(words) for words in headings])
    axes.set_yticks([row + 0.5 for row in range(len(results))], [_cut(visible(item.scenario), 19) for item in results])
    for row, result in enumerate(results):
        if result.status != "measured":
            colour = COLOURS["bad" if result.status == "failed" else "muted"]
            axes.text(0.04, row + 0.5, _cut(visible(f"{result.status}: {result.reason}"), 60), va="center", color=colour)
            continue
        for place, name in enumerate(names):
            if name in result.metrics:
                _draw_cell(axes, place, row, result, name)


def _draw_cell(axes: Axes, place: int, row: int, result: Result, name: str) -> None:
    from matplotlib.patches import Rectangle

    verdict = limit_of(result, name)
    step = None if verdict is None else heat(verdict)
    if step is not None:
        axes.add_patch(Rectangle((place + 0.02, row + 0.04), 0.96, 0.92, facecolor=COLOURS[f"h{step}"], edgecolor="none"))
    level = worst_level(result.verdicts, name)
    weight = "bold" if level == "fail" and result.gates else "normal"
    text = value_of(result, name) + _MARKS[level]
    colour = COLOURS["paper" if step == 6 else "ink"]
    axes.text(place + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontweight=weight)


def _draw_steps(axes: Axes, steps: Sequence[Tried]) -> None:
    """Draws the share of its limit that a metric reaches before and after each change."""
    strains = [(item.strain_before, item.strain_after) for item in steps]
    values = [value for pair in strains for value in pair if value > 0 and math.isfinite(value)]
    low, high = min([*values, 0.5]) / 2, max([*values, 2.0]) * 2
    axes.set(xscale="log", xlim=(low, high), ylim=(_STEPS - 0.4, -0.6), xlabel="share of the limit")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.minorticks_off()
    axes.axvline(1, color=COLOURS["ink"], linewidth=0.8)
    for row, (item, pair) in enumerate(zip(steps, strains, strict=True)):
        colour = COLOURS[{"restores": "good", "worsens": "bad"}.get(item.effect, "muted")]
        ends = [value if math.isnan(value) else min(max(value, low), high) for value in pair]
        axes.plot(ends, [row, row], color=colour, linewidth=3, alpha=0.4)
        axes.plot(ends[:1], [row], "o", markersize=9, color=colour, markerfacecolor=COLOURS["paper"], clip_on=False)
        axes.plot(ends[1:], [row], "o", markersize=9, color=colour, clip_on=False)
    axes.set_yticks(range(len(steps)), [_name(item) for item in steps], fontsize=11)


def _name(item: Tried) -> str:
    parts = changes(item.step)
    values = " + ".join(f"{before} → {after}" for _, before, after in parts)
    names = " + ".join(name.rpartition(".")[2] for name, _, _ in parts)
    return f"{_cut(names, 24)}\n{_cut('not tried' if item.effect == 'error' else values, 32)}"


def _write_note(axes: Axes, text: str) -> None:
    """Writes a message in the place of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=COLOURS["muted"])


def _title(axes: Axes, text: str) -> None:
    axes.set_title(_cut(visible(text), 56), loc="left", fontsize=14, color=COLOURS["ink"])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


# ---- what is shown


def _origin(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()) if name != "device")
    device = report.versions.get("device", report.platform)
    return visible(
        f"{report.model} ({report.model_type}) on {device}; {versions}; thresholds {report.profile}; {report.date[:10]}"
    )


def _focus(report: Report) -> Result | None:
    """Returns the scenario to show: that of the strongest restoring setting, else the one nearest to its limits that counts."""
    found = {result.scenario: result for result in report.measured if result.histogram is not None}
    for item in report.attributions:
        if item.restores and item.scenario in found:
            return found[item.scenario]

    def key(result: Result) -> tuple[bool, bool, float]:
        return result.gates, result.level == "fail", max(map(strain, result.verdicts), default=0.0)

    return max(found.values(), key=key, default=None)


def _cure(report: Report, focus: Result) -> tuple[str, Histogram] | None:
    """Returns the change that restores a scenario, and its tokens after it."""
    steps = {(step.setting, plain(step.after)): step for step in report.steps}
    for item in report.attributions:
        step = steps.get((item.setting, plain(item.after)))
        for result in step.results if step and focus.scenario in item.restores else ():
            if result.scenario == focus.scenario and result.histogram is not None:
                return brief(item), result.histogram
    return None
