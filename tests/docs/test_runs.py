"""The page of the commonest runs: it is made of its data, and the plans that it names are those of today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from script_modules import load_script

_SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "run_page.py"


runs = load_script(_SCRIPT)
ROWS = runs.read().rows


def test_the_page_is_made_of_the_data_of_todays_runs() -> None:
    assert ROWS
    assert [row.run for row in ROWS] == [run for run in runs.RUNS if run in {row.run for row in ROWS}]
    assert (runs.DOCS / "runs.md").read_text(encoding="utf-8") == runs.markdown(runs.read(), runs.read(platform="cuda"))


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.run.name)
def test_the_plan_of_a_run_is_the_one_that_the_page_names(row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(row.config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # so that runs of one program have one command line, which vLLM's parser reads once

    assert runs.planned(row.run, Path(), "cpu") == row.cpu
    assert runs.planned(row.run, Path(), "cuda") == row.cuda


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.run.name)
def test_a_run_with_quirks_is_no_further_from_its_trainer(row) -> None:
    assert row.on.error == ""
    if row.off.mean is not None:
        assert row.on.mean <= row.off.mean * 1.25  # other samples of the same distributions


def test_the_commonest_run_is_measured_without_each_quirk() -> None:
    (row,) = [row for row in ROWS if row.run.by_quirk]

    assert {one.quirk for one in row.each} == {*row.measured, *row.cpu.already}
    assert not any(one.same for pair in row.each for one in (pair.bfloat16, pair.float32) if one.error)
