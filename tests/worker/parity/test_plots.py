"""The plots: SVG that a page can hold many of, and a picture of a known size."""

from __future__ import annotations

import re
import struct
import sys
import xml.etree.ElementTree as ET

import pytest

from quirks_core.errors import UsageError
from worker.parity.plots import bins_svg, histogram_svg, write_png
from worker.parity.records import Bin, Histogram

pytest.importorskip("matplotlib", reason="the plots need matplotlib: pip install 'model-quirks[parity]'")

_HISTOGRAM = Histogram(edges=(-1.0, -0.5, 0.0, 0.5, 1.0), counts=(1, 20, 300, 0))


def _bins(*values: float) -> tuple[Bin, ...]:
    return tuple(
        Bin(label=f"{place}-<b>&", tokens=8, mean_delta=0.0, mean_abs_delta=value / 2, max_abs_delta=value)
        for place, value in enumerate(values)
    )


def _parsed(svg: str) -> ET.Element:
    assert svg.startswith("<svg ")
    return ET.fromstring(svg)  # noqa: S314  # our own


@pytest.mark.parametrize(
    "svg",
    [
        lambda: histogram_svg(_HISTOGRAM, "a"),
        lambda: histogram_svg(Histogram(edges=(-1e-6, 0.0, 1e-6), counts=(0, 0)), "a"),
        lambda: histogram_svg(Histogram(edges=(-1e-6, 0.0, 1e-6), counts=(0, 3)), "a"),
        lambda: bins_svg(_bins(1e-6, 0.1, 3.0), "a", "position"),
        lambda: bins_svg(_bins(0.35, 0.35), "a", "position"),
        lambda: bins_svg(_bins(0.0, 0.0), "a", "position"),
        lambda: bins_svg(_bins(float("nan"), float("inf"), 0.1), "a", "position"),
        lambda: bins_svg(_bins(*[0.1] * 30), "a", "position"),
    ],
    ids=["histogram", "empty", "one bin", "bins", "constant", "zero", "not finite", "many"],
)
def test_every_plot_is_one_well_formed_element_with_a_name(svg):
    root = _parsed(svg())

    assert root.get("role") == "img"
    assert root.get("aria-label")


def test_no_two_plots_share_a_name_of_their_insides():
    first, second = (bins_svg(_bins(0.1, 0.2), name, "position") for name in ("a", "b"))
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in (first, second)]

    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg, own in ((first, ids[0]), (second, ids[1])):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(own)


def test_colours_come_from_the_page():
    svg = histogram_svg(_HISTOGRAM, "a") + bins_svg(_bins(0.1, 0.2), "b", "position")

    assert "var(--good)" in svg
    assert "var(--bad)" in svg
    assert not re.findall(r"#[0-9a-f]{6}\b", svg)


def test_text_stays_text_and_is_escaped():
    svg = bins_svg(_bins(0.1, 0.2), "a", "position")

    assert "0-<b>&" in "".join(_parsed(svg).itertext())
    assert "<b>" not in svg


def test_the_same_plot_has_the_same_bytes():
    assert histogram_svg(_HISTOGRAM, "a") == histogram_svg(_HISTOGRAM, "a")
    assert bins_svg(_bins(0.1), "a", "position") == bins_svg(_bins(0.1), "a", "position")


def test_what_the_user_configured_for_matplotlib_changes_nothing():
    import matplotlib as mpl

    plain = histogram_svg(_HISTOGRAM, "a")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert histogram_svg(_HISTOGRAM, "a") == plain
        assert mpl.rcParams["font.size"] == 30


@pytest.mark.parametrize("name", ["faulty", "sound", "crowded", "hostile"])
def test_the_picture_has_its_size_and_the_same_bytes_every_time(name, request, tmp_path):
    report = request.getfixturevalue(name)
    files = [tmp_path / "a.png", tmp_path / "b.png"]

    for file in files:
        write_png(report, file)

    data = files[0].read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1600, 900)
    assert data == files[1].read_bytes()


def test_a_run_without_results_has_a_picture_too(make_report, tmp_path):
    write_png(make_report(results=(), ladder=(), attributions=()), tmp_path / "a.png")

    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_missing_matplotlib_is_a_usage_error_that_says_what_to_install(sound, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(UsageError, match=r"pip install 'model-quirks\[parity\]'"):
        write_png(sound, tmp_path / "a.png")
