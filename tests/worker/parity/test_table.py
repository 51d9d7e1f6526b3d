"""The report in a terminal: everything is there, also in 80 columns and without colours."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from worker.parity.records import Report
from worker.parity.table import show_report


def _shown(report: Report, *, colours: bool = False, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colours, color_system="truecolor" if colours else None)
    show_report(console, report)
    return file.getvalue()


def test_every_scenario_is_a_row_with_its_result(faulty):
    lines = _shown(faulty).splitlines()

    for result in faulty.results:
        (row,) = (line.split() for line in lines if line.startswith(f"{result.scenario} "))
        expected = result.status if result.status != "measured" else result.level if result.gates else f"({result.level})"
        assert row[1] == expected


def test_figures_stand_beside_their_limits_and_reasons_and_crossed_limits_are_given(faulty):
    text = _shown(faulty)

    assert all(figure in text for figure in ("0.350✗", "0.0547!"))
    assert all(limit in text for limit in ("≤ 0.02", "≤ 0.2", "≤ 0.001", "≤ 1.05", "≤ 0.005", "≤ 0.01", "≤ 0.1"))
    assert "data-parallel: skipped: engine.data_parallel_size is 1\n" in text
    assert "sleep-wake: failed: EngineDiedError: signal 9\n" in text
    assert "top-p-top-k: fail: max_abs_delta 0.0139, limit ≤ 0.001 (float32-noise)\n" in text
    assert "temperature: and 3 more\n" in text


def test_the_ablation_has_every_step_with_its_effect(crowded):
    text = _shown(crowded, width=200)

    assert [step.setting for step in crowded.steps if f"{step.setting} " not in text] == []
    assert text.count("no effect") == 16
    effects = ("restores temperature", "worsens cold-start", "not tried: EngineStartError: no fp8")
    assert all(effect in text for effect in effects)


def test_a_quirk_that_does_the_same_is_named_with_its_switch(faulty):
    assert "quirk rollout-logprobs-processed does so; disabled: you disabled it. To have it: remove --disable" in _shown(faulty)


def test_a_skeleton_can_be_copied_as_it_is(faulty):
    (skeleton,) = (item.skeleton for item in faulty.attributions if item.skeleton)

    assert f"\n{skeleton}" in _shown(faulty, colours=True)


def test_the_last_line_is_the_verdict(faulty, sound, make_report):
    empty = make_report(results=(), steps=(), attributions=(), versions={})
    for report, verdict in (
        (faulty, "Parity is broken in 4 of 9 scenarios"),
        (sound, "Parity holds in the one scenario that counts."),
        (empty, "Nothing that counts was measured"),
    ):
        assert _shown(report).splitlines()[-1].startswith(verdict)


@pytest.mark.parametrize("name", ["faulty", "crowded"])
def test_tables_fit_into_80_columns(name, request):
    tables = [line for line in _shown(request.getfixturevalue(name)).splitlines() if line.endswith(" ") or "─" in line]

    assert tables
    assert max(map(cell_len, tables)) <= 80


def test_colours_add_nothing_that_the_words_do_not_say(faulty):
    assert re.sub(r"\x1b\[[\d;]*m", "", _shown(faulty, colours=True)) == _shown(faulty)


def test_markup_and_terminal_codes_are_shown_and_not_obeyed(hostile):
    text = _shown(hostile, width=300)

    assert "\x1b" not in text
    assert all(words in text for words in ("\\x1b[31m[red]", "nan✗", "inf✗"))
