"""What a run has finished is there for the next one of the same kind, and for no other."""

from __future__ import annotations

import pytest

from worker.parity.records import Result, Step
from worker.parity.store import Store

RUN = {"plan": "abc", "tokens": 32}
RESULT = Result(scenario="cold-start", title="as the run begins", metrics={"max_abs_delta": float("nan")})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "deep" / "state.jsonl"


def test_a_piece_is_there_for_the_next_run_of_the_same_kind(file):
    Store(file, RUN).put("cold-start", RESULT)

    again = Store(file, RUN)

    assert again.found == 1
    found = again.get("cold-start", Result)
    assert (found.scenario, str(found.metrics["max_abs_delta"])) == ("cold-start", "nan")


def test_a_run_of_another_kind_finds_nothing_and_takes_its_place(file):
    Store(file, RUN).put("cold-start", RESULT)

    other = Store(file, {**RUN, "tokens": 64})
    other.put("temperature", RESULT)

    assert other.found == 0
    assert Store(file, RUN).found == 0
    assert Store(file, {**RUN, "tokens": 64}).get("temperature", Result) is not None


def test_a_line_that_was_cut_off_costs_that_piece_alone(file):
    store = Store(file, RUN)
    store.put("a", RESULT)
    store.put("b", RESULT)
    file.write_text(file.read_text()[:-20])

    again = Store(file, RUN)
    again.put("c", RESULT)

    assert again.found == 1
    assert Store(file, RUN).get("c", Result) is not None


def test_a_piece_of_another_kind_is_not_there(file):
    Store(file, RUN).put("cold-start", RESULT)

    assert Store(file, RUN).get("cold-start", Step) is None
    assert Store(file, RUN).get("temperature", Result) is None


def test_without_a_file_nothing_is_written_and_pieces_last_as_long_as_the_run():
    store = Store(None, RUN)

    store.put("a", RESULT)

    assert store.get("a", Result) is not None
