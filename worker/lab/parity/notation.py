"""Formats numbers, limits and values for every view of a report."""

from __future__ import annotations

import json
import math
from typing import Any

from quirks_core.base.text import one_line
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.records import Verdict

_SIGNS = {"high": "≤ ", "low": "≥ ", "size": "within ±"}


def number(value: float, *limits: float) -> str:
    """Writes a number with three significant digits, and as many more as tell it from limits, up to six.

    Counts of up to six digits are written in full.
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    near = {limit for limit in limits if limit != value}
    digits = next((some for some in (3, 4, 5) if f"{value:.{some}g}" not in {f"{limit:.{some}g}" for limit in near}), 6)
    return f"{value:#.{digits}g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def short(value: float) -> str:
    """Writes a limit: as `number`, without zeros at its end."""
    mantissa, power, exponent = number(value).partition("e")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + power + exponent


def bound(verdict: Verdict) -> str:
    """Writes a verdict's limit."""
    return _SIGNS[verdict.side] + short(verdict.limit)


def plain(value: Any) -> str:
    """Writes a setting's value on one line: None is ``not set``, texts are bare, the rest is JSON."""
    if value is None:
        return "not set"
    return one_line(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def label(metric: str) -> str:
    """Returns a metric's heading."""
    return METRICS[metric].label if metric in METRICS else metric
