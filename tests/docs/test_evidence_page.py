"""The page of evidence shows what was recorded: a line for each quirk, the versions by place."""

from __future__ import annotations

from datetime import date

import evidence_page
import pytest

from quirks_core.plugins.registry import Registry
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit.evidence_table import Proved


@pytest.fixture
def line(monkeypatch):
    """Returns a quirk's cells where these rows were recorded of it, and others of another quirk."""

    def line(name, *rows, others=()):
        loaded = [Registry.load().find(name), Registry.load().find("logprob-token-ids-rows")]
        monkeypatch.setattr(evidence, "proved", lambda quirk: rows if quirk.id == name else others)
        (found,) = (text for block in evidence_page.blocks(loaded) for text in block.splitlines() if f"`{name}`" in text)
        return [cell.strip() for cell in found.strip("|").split("|")][1:]

    return line


def _row(vllm="0.33.0", conclusion="NEEDED", by="paired run", **more):
    values = {"platform": "cuda", "runner": "v2", "date": date(2026, 11, 25), **more}
    return Proved(vllm=vllm, conclusion=conclusion, by=by, **values)


def test_each_runner_and_mode_is_a_place_of_its_own(line):
    rows = _row(runner="v1"), _row(graphs=True, conclusion="NOT NEEDED"), _row(), _row(platform="cpu", runner="v1")

    assert line("attention-sink-refit", *rows)[:2] == [
        "cpu v1 0.33.0; cuda v1 eager 0.33.0; cuda v2 eager 0.33.0",
        "cuda v2 CUDA graphs 0.33.0",
    ]


def test_neighbouring_versions_are_joined(line):
    rows = [_row(vllm) for vllm in ("0.9.2", "0.10.0", "0.32.0", "0.33.0")]

    assert line("attention-sink-refit", *rows, others=(_row("0.31.0"),))[0] == "cuda v2 eager 0.9.2 to 0.10.0, 0.32.0 to 0.33.0"


def test_what_the_source_says_holds_for_either_runner(line):
    rows = _row(by="static probe", runner="v1"), _row("0.32.0", "NOT NEEDED", "static probe")

    assert line("attention-sink-refit", *rows)[2:] == ["cuda 0.33.0", "cuda 0.32.0", ""]


@pytest.mark.parametrize(("vllm", "cell"), [("0.28.0", ""), ("0.29.0", "cuda v2 eager 0.29.0")])
def test_a_run_outside_of_the_range_leaves_nothing_open(line, vllm, cell):
    assert line("cohere2-sliding-window", _row(vllm, "INCONCLUSIVE"))[4] == cell
