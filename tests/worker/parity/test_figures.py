"""The figures: SVG that a page can hold many of, and a picture of a known size."""

from __future__ import annotations

import math
import re
import struct
import sys
import xml.etree.ElementTree as ET

import pytest

from quirks_core.base.errors import UsageError
from worker.lab.parity.figures import breakdown, overview
from worker.lab.parity.records import Bin, Histogram, Result

pytest.importorskip("matplotlib", reason="the figures need matplotlib: pip install 'model-quirks[parity]'")


def _result(*deltas: float, counts: tuple[int, ...] = (1, 20, 300, 0), width: float = 1.0) -> Result:
    bins = tuple(
        Bin(label=f"{place}-<b>&", tokens=8, mean_delta=0.0, mean_abs_delta=value / 2, max_abs_delta=value)
        for place, value in enumerate(deltas)
    )
    edges = tuple(width * (2 * place / len(counts) - 1) for place in range(len(counts) + 1))
    return Result(
        scenario="a", title="", histogram=Histogram(edges=edges, counts=counts), by_position=bins, by_probability=bins
    )


def _parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  # our own


@pytest.mark.parametrize(
    "result",
    [
        _result(1e-6, 0.1, 3.0),
        _result(0.35, 0.35, counts=(0, 3), width=1e-6),
        _result(0.0, 0.0, counts=(0, 0)),
        _result(math.nan, math.inf, 0.1),
        _result(*[0.1] * 30),
        Result(scenario="nothing", title=""),
    ],
    ids=["usual", "constant", "zero", "not finite", "many", "nothing"],
)
def test_every_figure_is_one_well_formed_element_whose_text_stays_text(result):
    svg = breakdown(result, "a")
    root = _parsed(svg)

    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert "<b>" not in svg
    assert ("0-<b>&" in "".join(root.itertext())) is any(item.max_abs_delta > 0 for item in result.by_position)


def test_no_two_figures_share_a_name_of_their_insides():
    first, second = (breakdown(_result(0.1, 0.2), name) for name in ("a", "b"))
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in (first, second)]

    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg, own in ((first, ids[0]), (second, ids[1])):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(own)


def test_colours_of_a_figure_come_from_the_page(faulty):
    svg = overview(faulty).svg

    assert {"var(--good)", "var(--bad)", "var(--h0)", "var(--h6)"} <= set(re.findall(r"var\(--\w+\)", svg))
    assert not re.findall(r"#[0-9a-f]{6}\b", svg)


def test_what_the_user_configured_for_matplotlib_changes_nothing():
    import matplotlib as mpl

    plain = breakdown(_result(0.1), "a")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert breakdown(_result(0.1), "a") == plain
        assert mpl.rcParams["font.size"] == 30


@pytest.mark.parametrize("name", ["faulty", "sound", "crowded", "hostile"])
def test_the_overview_is_the_same_picture_every_time(name, request):
    found = overview(request.getfixturevalue(name))

    assert found.png.startswith(b"\x89PNG")
    assert struct.unpack(">II", found.png[16:24]) == (1600, 900)
    assert found == overview(request.getfixturevalue(name))
    assert _parsed(found.svg).get("role") == "img"


def test_a_missing_matplotlib_is_a_usage_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(UsageError, match=r"pip install 'model-quirks\[parity\]'"):
        breakdown(_result(0.1), "a")
