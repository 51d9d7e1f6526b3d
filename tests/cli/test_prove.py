"""``quirks prove`` as a user types it, on quirks whose evidence needs no engine."""

from __future__ import annotations

import json

import pytest

from quirks_core.cli import main
from quirks_core.testing.proof import Report


def test_a_quirk_without_evidence_ends_with_0_and_says_so(capsys, tmp_path):
    code = main(["prove", "cp-vlm", "--json", "--output", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")])

    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(proof["id"], proof["conclusion"]) for proof in printed["proofs"]] == [("cp-vlm", "INCONCLUSIVE")]
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) == printed
    assert (tmp_path / "r.md").read_text(encoding="utf-8") == Report.model_validate(printed).markdown()


def test_a_person_sees_the_conclusion_and_why(capsys):
    code = main(["prove", "cp-vlm"])

    assert code == 0
    assert "INCONCLUSIVE cp-vlm: no evidence that can be run here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the quirks to prove, or give --all"),
        (["cp-vlm", "--all"], "and not both"),
        (["cp-vml"], "did you mean 'cp-vlm'"),
        (["cp-vlm", "--output", "/nowhere/report.json"], "/nowhere/report.json cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(capsys, arguments, message):
    code = main(["prove", *arguments, "--json"])

    assert code == 2
    assert message in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "soon"])
def test_a_time_limit_must_be_a_number_of_seconds(capsys, text):
    with pytest.raises(SystemExit) as caught:
        main(["prove", "cp-vlm", f"--timeout={text}"])

    assert caught.value.code == 2
    assert "is not a number of seconds above 0" in capsys.readouterr().err
