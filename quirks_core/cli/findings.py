"""Findings as ``doctor`` and ``validate`` print them."""

from __future__ import annotations

from collections.abc import Iterable

from quirks_core.cli.screen import Screen, line, lines

_COLOURS = {"ok": "green", "note": "cyan", "error": "bold red", "broken": "bold red"}


def show_findings(screen: Screen, findings: Iterable[tuple[str, str, str]]) -> None:
    """Prints findings, each with its level in front.

    Args:
        screen: Where.
        findings: Level, subject and message of each.
    """
    rows = [
        (f"[{_COLOURS[level]}]{level}[/]", f"[bold]{line(subject)}[/]: {lines(message)}")
        for level, subject, message in findings
    ]
    screen.entries(rows, indent=0)
