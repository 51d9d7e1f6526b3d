"""The plots of a parity report: inline SVG that takes its colours from the page, and one PNG for a README."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.parity.drawing import PRINT, cut, draw_bins, draw_heat_map, draw_histogram, draw_ladder, drawing
from worker.parity.figures import measured, taken, visible
from worker.parity.records import Bin, Histogram, Report, Result
from worker.parity.summary import brief, headline, tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that the page replaces by its own, so that one SVG serves light and dark; no plot has these by chance.
_PAGE = {"ink": "#010203", "muted": "#020304", "line": "#030405", "good": "#040506", "bad": "#050607", "paper": "#060708"}
#: Size of a plot of a page, in inches, and of its text, in points; the page scales both.
_PLOT, _TEXT = (3.7, 2.25), 7.5
#: Where its axes are: the same in all, so that plots side by side are level.
_AXES = (0.125, 0.27, 0.86, 0.64)
#: The picture: 1600 x 900 pixels.
_PICTURE, _DPI = (16, 9), 100


def histogram_svg(histogram: Histogram, name: str) -> str:
    """Draws tokens by log ratio.

    Args:
        histogram: The tokens.
        name: Name of the plot; no other one of the page has it.

    Returns:
        An ``<svg>`` element in the colours of the page.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with drawing(name, _PLOT, _TEXT) as figure:
        draw_histogram(figure.add_axes(_AXES), histogram, None, _PAGE)
        return _svg(figure, name, f"Histogram of {sum(histogram.counts)} tokens by log ratio")


def bins_svg(bins: Sequence[Bin], name: str, axis: str) -> str:
    """Draws mean and largest absolute difference by the parts of a breakdown.

    Args:
        bins: The parts, in order.
        name: Name of the plot; no other one of the page has it.
        axis: What the parts are of.

    Returns:
        An ``<svg>`` element in the colours of the page.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with drawing(name, _PLOT, _TEXT) as figure:
        draw_bins(figure.add_axes(_AXES), bins, axis, _PAGE)
        return _svg(figure, name, f"Mean and largest difference of logprobs by {axis}")


def write_png(report: Report, file: Path) -> None:
    """Writes one picture of 1600 x 900 pixels: heat map, ratios where they are worst, and the ladder if there is one.

    Args:
        report: The report.
        file: Where to write.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with drawing("picture", _PICTURE, 13) as figure:
        said = headline(report)
        colour = PRINT["good" if said.level == "ok" else "bad"]
        figure.text(
            0.025, 0.94, cut(said.verdict.partition(";")[0].rstrip("."), 108), fontsize=18, fontweight="bold", color=colour
        )
        advice = textwrap.fill(said.advice, 150, max_lines=2, placeholder=" …")
        figure.text(0.025, 0.925, advice, color=PRINT["ink"], va="top", linespacing=1.4)
        figure.text(0.025, 0.028, cut(_origin(report), 160), fontsize=11.5, color=PRINT["muted"])
        draw_heat_map(figure.add_axes((0.128, 0.085, 0.432, 0.69)), report.results)
        focus, ladder = _focus(report), tried(report)
        if focus is not None and focus.histogram is not None:
            axes = figure.add_axes((0.645, 0.555, 0.335, 0.22))
            changed, after = _cure(report, focus) or ("", None)
            draw_histogram(axes, focus.histogram, after, PRINT, changed=cut(changed, 26))
            _title(axes, f"{focus.scenario}: policy ratio, token by token")
        if ladder:
            axes = figure.add_axes((0.765, 0.125, 0.21, 0.28))
            shown = draw_ladder(axes, ladder)
            rest = f", {shown} of {len(ladder)}" if shown < len(ladder) else ""
            _title(axes, f"one setting changed{rest}: ○ before, ● after", at=-0.575, above=14)
        elif focus is not None and focus.by_position:
            axes = figure.add_axes((0.645, 0.125, 0.335, 0.24))
            draw_bins(axes, focus.by_position, "position among the generated tokens", PRINT)
            _title(axes, f"{focus.scenario}: |Δ| by position")
        figure.savefig(file, format="png", dpi=_DPI, facecolor=PRINT["paper"], metadata={"Software": None})


def _svg(figure: Figure, name: str, says: str) -> str:
    """Returns the figure as an element of a page: with its colours, its font, names of its own and no prologue."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    _, _, text = file.getvalue().partition("<svg ")
    head, _, text = text.partition(">")
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)  # names of groups, which every plot has
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{name}-", text).replace("xlink:href", "href")
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    for role, colour in _PAGE.items():
        text = text.replace(colour, f"var(--{role})")
    box = head.partition('viewBox="')[2].partition('"')[0]
    return f'<svg viewBox="{box}" role="img" aria-label="{says}">{text.strip()}'


def _title(axes: Axes, text: str, *, at: float = 0.0, above: float = 33) -> None:
    place: dict[str, Any] = {"xy": (at, 1), "xycoords": "axes fraction", "xytext": (0, above), "textcoords": "offset points"}
    axes.annotate(cut(visible(text), 56), **place, fontsize=14, color=PRINT["ink"])


def _origin(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()) if name != "device")
    device = report.versions.get("device", report.platform)
    return visible(
        f"{report.model} ({report.model_type}) on {device}; {versions}; thresholds {report.profile}; {report.date[:10]}"
    )


def _focus(report: Report) -> Result | None:
    """Returns the scenario to look at: the one of the strongest cure, or the most strained among those that count."""
    found = {result.scenario: result for result in measured(report) if result.histogram is not None}
    for item in report.attributions:
        if item.restores and item.scenario in found:
            return found[item.scenario]

    def key(result: Result) -> tuple[bool, bool, float]:
        return result.gates, result.level == "fail", max(map(taken, result.verdicts), default=0.0)

    return max(found.values(), key=key, default=None)


def _cure(report: Report, focus: Result) -> tuple[str, Histogram] | None:
    """Returns the change that restores a scenario, and its tokens after it."""
    for item in report.attributions:
        for step in report.ladder:
            if focus.scenario not in item.restores or (step.setting, step.after) != (item.setting, item.after):
                continue
            for result in step.results:
                if result.scenario == focus.scenario and result.histogram is not None:
                    return brief(item), result.histogram
    return None
