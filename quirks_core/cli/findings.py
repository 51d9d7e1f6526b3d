"""Findings as ``validate`` prints them."""

from __future__ import annotations

from collections.abc import Iterable

from quirks_core.reporting.finding import Finding
from quirks_core.reporting.terminal import Screen


def show_findings(screen: Screen, findings: Iterable[tuple[str, str, str]]) -> None:
    """Prints findings: level, subject and message of each."""
    screen.findings(Finding(*one) for one in findings)
