"""The report as files: JSON, an image, and one HTML page without scripts and external resources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError
from worker.lab.parity import summary
from worker.lab.parity.figures import breakdown, overview
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.notation import bound, label, number, plain, short, visible
from worker.lab.parity.records import Report, worst_level

_ADDRESS = re.compile(r"https?://[^\s<>\"']*[^\s<>\"'.,;:)]")
#: Characters shown before a token.
_CONTEXT = 60


def write_report(report: Report, folder: Path) -> None:
    """Writes ``report.json``, ``report.html`` and ``report.png``.

    Args:
        report: The report; samples are left out.
        folder: Where to write.

    Raises:
        UsageError: jinja2 or matplotlib is not installed.
    """
    report = report.without_samples()
    picture = overview(report)
    page = _page(report, picture.svg)
    (folder / "report.json").write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page, encoding="utf-8")
    (folder / "report.png").write_bytes(picture.png)


def _page(report: Report, picture: str) -> str:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise UsageError("the page needs jinja2: pip install 'model-quirks[parity]'") from error
    environment = Environment(
        loader=PackageLoader("worker.lab.parity"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # what jinja2 marked as safe is a subclass
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        changes=summary.changes,
        state=summary.state_of,
        number=number,
        bound=bound,
        plain=plain,
        named=label,
        linked=_linked,
        verbatim=lambda text: _escaped("\n".join(map(visible, text.splitlines()))),
        context=lambda text: text if len(text) <= _CONTEXT else f"…{text[-_CONTEXT:]}",
    )
    for function in (
        summary.crossed,
        summary.value_of,
        summary.heat,
        summary.limit_of,
        summary.limits_of,
        summary.metrics_of,
        worst_level,
    ):
        environment.globals[function.__name__] = function
    opened = [result.scenario for result in report.results if result.level != "ok"]
    return environment.get_template(
        "report.html.j2"
    ).render(
        report=report,
        said=summary.headline(report),
        overview=Markup(picture),  # noqa: S704  # matplotlib escapes its texts
        breakdown=lambda result, name: Markup(breakdown(result, name)),  # noqa: S704  # as above
        places={result.scenario: place for place, result in enumerate(report.results)},
        heat_steps=_heat_steps(),
        opened=opened or [result.scenario for result in report.measured[:1]],
        steps=summary.tried(report),
        metrics=METRICS,
    )


def _heat_steps() -> list[str]:
    """What the colours of the scale mean, in shares of a limit."""
    bounds = [f"{short(bound * 100)} %" if bound <= 1 else f"{short(bound)}x" for bound in summary.HEAT]
    return [*(f"to {bound}" for bound in bounds), f"above {bounds[-1]}"]


def _linked(text: str) -> Any:
    """Makes links of the addresses in a text."""
    from markupsafe import Markup

    parts, end = [], 0
    for match in _ADDRESS.finditer(text):
        parts += [_escaped(visible(text[end : match.start()])), Markup('<a href="{0}">{0}</a>').format(match[0])]
        end = match.end()
    return Markup("").join([*parts, _escaped(visible(text[end:]))])


def _escaped(text: str) -> Any:
    from markupsafe import escape

    return escape(text)
