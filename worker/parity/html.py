"""The report as one HTML file: it fetches nothing, runs nothing, and reads in light and dark, on a screen and on a phone."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quirks_core.errors import UsageError
from worker.parity.figures import (
    HEAT,
    Level,
    bound,
    crossed,
    heat,
    label,
    level_of,
    limits_of,
    measured,
    metrics_of,
    number,
    plain,
    short,
    taken,
    verdicts_of,
    visible,
)
from worker.parity.metrics import METRICS
from worker.parity.plots import bins_svg, histogram_svg
from worker.parity.records import Report, Result, WorstToken
from worker.parity.summary import Tried, changes, headline, state_of, tried

_ADDRESS = re.compile(r"https?://[^\s<>\"']*[^\s<>\"'.,;:)]")
#: Characters shown before a token.
_CONTEXT = 60


@dataclass(frozen=True, slots=True)
class _Cell:
    """A metric in one scenario: its text, the step of the colour scale (None without a limit), and its level."""

    text: str
    heat: int | None
    level: Level | None


@dataclass(frozen=True, slots=True)
class _Row:
    """A metric over all scenarios."""

    metric: str
    help: str
    unit: str
    limits: tuple[str, ...]
    cells: tuple[_Cell | None, ...]


@dataclass(frozen=True, slots=True)
class _Bar:
    """Where a change begins and ends on the ladder's scale, and where the limit is: in percent of the width."""

    before: float
    after: float
    limit: float


def write_html(report: Report, file: Path) -> None:
    """Writes the report as a page.

    Args:
        report: The report.
        file: Where to write.

    Raises:
        UsageError: jinja2 or matplotlib is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise UsageError("the page needs jinja2: pip install 'model-quirks[parity]'") from error
    environment = Environment(
        loader=PackageLoader("worker.parity"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # what jinja2 marked as safe is a subclass
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        changes=changes,
        state=state_of,
        number=number,
        bound=bound,
        plain=plain,
        named=label,
        linked=_linked,
        verbatim=_verbatim,
    )
    figures, ladder = measured(report), tried(report)
    page = environment.get_template("report.html.j2").render(
        report=report,
        said=headline(report),
        figures=figures,
        places={result.scenario: place for place, result in enumerate(report.results)},
        rows=[_row(metric, figures) for metric in metrics_of(figures)],
        heat_steps=_heat_steps(),
        scenarios=[(result, crossed(result), _plots(result, place)) for place, result in enumerate(report.results)],
        opened=_opened(report),
        before=_before,
        ladder=list(zip(ladder, _bars(ladder), strict=True)),
        thresholds=limits_of(report.results),
        metrics=METRICS,
    )
    file.write_text(page, encoding="utf-8")


def _row(metric: str, results: Sequence[Result]) -> _Row:
    known = METRICS.get(metric)
    return _Row(
        metric,
        known.help if known else "",
        known.unit if known else "",
        tuple(dict.fromkeys(map(bound, limits_of(results, metric)))),
        tuple(_cell(result, metric) for result in results),
    )


def _cell(result: Result, metric: str) -> _Cell | None:
    if metric not in result.metrics:
        return None
    verdicts = verdicts_of(result, metric)
    return _Cell(number(result.metrics[metric]), heat(taken(verdicts[0])) if verdicts else None, level_of(result, metric))


def _heat_steps() -> list[str]:
    """What the colours of the scale mean, in shares of a limit."""
    bounds = [f"{short(bound * 100)} %" if bound <= 1 else f"{short(bound)}x" for bound in HEAT]
    return [*(f"to {bound}" for bound in bounds), f"above {bounds[-1]}"]


def _plots(result: Result, place: int) -> list[tuple[str, Any]]:
    """The plots of a scenario with their titles; none for what is not there."""
    from markupsafe import Markup

    found = []
    if result.histogram is not None:
        found.append(("Policy ratio, token by token", histogram_svg(result.histogram, f"h{place}")))
    for title, bins, axis in (
        ("|Δ| by position", result.by_position, "position among the generated tokens"),
        ("|Δ| by probability", result.by_probability, "trainer's probability of the token"),
    ):
        if bins:
            found.append((title, bins_svg(bins, f"{axis[0]}{place}", axis)))
    return [(title, Markup(svg)) for title, svg in found]  # noqa: S704  # matplotlib escapes its texts


def _opened(report: Report) -> set[str]:
    """Which scenarios are shown at once: those with findings, or the first one that was measured."""
    found = {result.scenario for result in report.results if result.level != "ok"}
    return found or {result.scenario for result in measured(report)[:1]}


def _before(token: WorstToken) -> str:
    return token.before if len(token.before) <= _CONTEXT else f"…{token.before[-_CONTEXT:]}"


def _bars(ladder: Sequence[Tried]) -> list[_Bar | None]:
    """Puts all changes on one logarithmic scale of shares of a limit; None where there is no limit or no value."""
    strains = [(item.strain_before, item.strain_after) for item in ladder]
    values = [value for pair in strains for value in pair if value > 0 and math.isfinite(value)]
    low, high = math.log(min([*values, 0.5]) / 2), math.log(max([*values, 2.0]) * 2)

    def place(value: float) -> float:
        inside = min(max(math.log(value), low), high) if value > 0 else low
        return round(100 * (inside - low) / (high - low), 2)

    return [
        None if math.isnan(one) or math.isnan(other) else _Bar(place(one), place(other), place(1)) for one, other in strains
    ]


def _linked(text: str) -> Any:
    """Makes links of the addresses in a text."""
    from markupsafe import Markup, escape

    parts, end = [], 0
    for match in _ADDRESS.finditer(text):
        parts += [escape(visible(text[end : match.start()])), Markup('<a href="{0}">{0}</a>').format(match[0])]
        end = match.end()
    return Markup("").join([*parts, escape(visible(text[end:]))])


def _verbatim(text: str) -> Any:
    """Escapes a text of several lines, which stay lines."""
    from markupsafe import escape

    return escape("\n".join(map(visible, text.splitlines())))
