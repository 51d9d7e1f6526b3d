"""The page on parity names everything that a report can show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.lab.attribution.settings import SETTINGS
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.notation import short
from worker.lab.parity.scenarios import SCENARIOS
from worker.lab.parity.thresholds import PROFILES

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "parity.md"


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """The rows of its tables, by each name in the first cell."""
    found: dict[str, list[str]] = {}
    for line in _PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = line.strip("| ").split(" | ")
            found.update(dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells))
    return found


def test_every_metric_and_scenario_is_explained(rows):
    assert METRICS.keys() | SCENARIOS.keys() <= rows.keys()


def test_every_threshold_stands_in_the_page_as_it_is_declared(rows):
    for threshold in {item for items in PROFILES.values() for item in items}:
        _, limit, level, *_ = rows[threshold.name]

        assert f"`{threshold.metric}`" in limit
        assert limit.endswith(f"{'≥' if threshold.side == 'low' else '≤'} {short(threshold.limit)}")
        assert level == f"{threshold.level}s"
        for address in re.findall(r"https://\S+", threshold.source):
            assert address in _PAGE.read_text(encoding="utf-8")


def test_every_setting_of_an_ablation_has_what_it_takes(rows):
    assert {name: rows[name][2] for name in SETTINGS if name in rows} == {name: item.how for name, item in SETTINGS.items()}
