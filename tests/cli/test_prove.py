"""``quirks prove`` as a user types it, on quirks whose evidence needs no engine."""

from __future__ import annotations

import pytest

from worker.testing.proof import Report


def test_a_quirk_without_evidence_ends_with_0_and_says_so(quirks, tmp_path):
    as_json, as_text = tmp_path / "r.json", tmp_path / "r.md"

    outcome = quirks("prove", "cp-vlm", "--json", "--output", as_json, "--markdown", as_text)

    assert outcome.code == 0
    assert [(proof["id"], proof["conclusion"]) for proof in outcome.json["proofs"]] == [("cp-vlm", "INCONCLUSIVE")]
    assert Report.read(as_json) == Report.model_validate(outcome.json)
    assert as_text.read_text(encoding="utf-8") == Report.read(as_json).markdown()


def test_a_person_sees_the_conclusion_and_why(quirks):
    outcome = quirks("prove", "cp-vlm")

    assert outcome.code == 0
    assert "INCONCLUSIVE cp-vlm: no evidence that can be run here" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments ID --all --changed is required"),
        (["cp-vlm", "--all"], "--all: not allowed with argument ID"),
        (["cp-vml"], "did you mean 'cp-vlm'"),
        (["cp-vlm", "--output", "/nowhere/report.json"], "/nowhere/report.json cannot be written"),
        *((["cp-vlm", f"--timeout={text}"], "is not a number of seconds above 0") for text in ("0", "nan", "inf", "soon")),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(quirks, arguments, message):
    outcome = quirks("prove", *arguments)

    assert outcome.code == 2
    assert message in outcome.err
