"""The page of evidence shows what was recorded, by installation and model runner."""

from __future__ import annotations

import json

import evidence_page
import pytest

from quirks_core.plugins.registry import Registry

_VERSIONS = {"python": "3.12.3", "vllm": "0.33.0"}


@pytest.fixture
def loaded():
    """Two built-in workarounds."""
    registry = Registry.load()
    return [registry.find("attention-sink-refit"), registry.find("logprob-token-ids-rows")]


@pytest.fixture
def write(tmp_path):
    """Writes a file of evidence."""

    def one(name, conclusion, kind="paired run", *, date="2026-11-25", reason="it is", findings=True, **more):
        run = {"outcome": None, "error": "it was seen", "runner": "v2", **more}
        found = {"kind": kind, "evidence": "a:b", "conclusion": conclusion, "reason": reason}
        if kind == "paired run":
            found["with_quirk"] = run
        return {
            "id": name, "title": "t", "distribution": "d", "version": "1", "conclusion": conclusion, "reason": reason,
            "findings": [found] if findings else [], "date": date,
            "depends": {"vllm": "0.33.0", "platform": "cuda", "device": "NVIDIA H100"},
        }  # fmt: skip

    def write(name, *proofs):
        record = {"versions": _VERSIONS, "platform": "cuda", "machine": "Linux x86_64", "proofs": list(proofs)}
        (tmp_path / name).write_text(json.dumps(record), encoding="utf-8")
        return tmp_path

    write.one = one
    return write


def _rows(folder, loaded, block=2):
    lines = [line for line in evidence_page.blocks(folder, loaded)[block].splitlines() if line.startswith("|")]
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return heads[1:], {row[0]: row[1:] for row in rows}


def test_each_model_runner_and_mode_of_an_installation_has_a_column_of_its_own(write, loaded):
    sinks, rows = (item.quirk.id for item in loaded)
    write("evidence.json", write.one(sinks, "NEEDED", runner="v1"))
    write("evidence-graphs.json", write.one(sinks, "NOT NEEDED", graphs=True))
    folder = write("evidence-h100.json", write.one(sinks, "NEEDED"), write.one(rows, "INCONCLUSIVE"))

    heads, cells = _rows(folder, loaded)

    assert [head.rpartition("<br>")[2] for head in heads] == ["runner v1, eager", "runner v2, CUDA graphs", "runner v2, eager"]
    assert cells == {f"`{sinks}`": ["**needed**", "not needed", "**needed**"], f"`{rows}`": ["", "", "undecided"]}


def test_what_the_source_says_holds_for_every_runner_of_the_installation(write, loaded):
    sinks, rows = (item.quirk.id for item in loaded)
    proofs = write.one(sinks, "NEEDED", runner="v1"), write.one(sinks, "NEEDED"), write.one(rows, "NEEDED", "static probe")

    _, cells = _rows(write("evidence.json", *proofs), loaded)

    assert cells == {f"`{sinks}`": ["**needed**", "**needed**"], f"`{rows}`": ["source: needed"] * 2}


def test_a_rule_that_does_not_hold_by_the_source_of_a_version_that_it_does_not_concern_is_not_affected(write):
    loaded = [Registry.load().find(name) for name in ("unread-arguments", "rust-frontend")]
    proofs = [write.one(item.quirk.id, "DOES NOT HOLD", "static probe") for item in loaded]
    for proof in proofs:
        proof["depends"]["vllm"] = "0.27.1"

    _, cells = _rows(write("evidence.json", *proofs), loaded, block=4)

    assert cells == {"`unread-arguments`": ["source: not affected"], "`rust-frontend`": ["source: does not hold"]}


def test_the_source_settles_what_a_run_did_not(write, loaded):
    proofs = [write.one(item.quirk.id, "INCONCLUSIVE") for item in loaded]
    proofs[1]["conclusion"] = "NEEDED"
    proofs[0]["depends"]["vllm"] = "0.32.0"

    _, cells = _rows(write("evidence.json", *proofs), loaded)

    assert list(cells.values()) == [["", "undecided"], ["source: needed", ""]]


@pytest.mark.parametrize(("vllm", "cell"), [("0.28.0", "source: not affected"), ("0.29.0", "undecided")])
def test_a_run_outside_of_the_range_decides_nothing(write, vllm, cell):
    loaded = [Registry.load().find("cohere2-sliding-window")]
    proof = write.one("cohere2-sliding-window", "INCONCLUSIVE")
    proof["depends"]["vllm"] = vllm

    _, cells = _rows(write("evidence.json", proof), loaded)

    assert cells == {"`cohere2-sliding-window`": [cell]}


def test_a_version_that_was_not_examined_is_undecided(write):
    loaded = [Registry.load().find("coalesced-outputs")]
    proof = write.one("coalesced-outputs", "INCONCLUSIVE")
    proof["depends"]["vllm"] = "0.25.1"

    _, cells = _rows(write("evidence.json", proof), loaded, block=4)

    assert cells == {"`coalesced-outputs`": ["undecided"]}


def test_of_two_proofs_on_one_installation_the_newer_counts(write, loaded):
    sinks = loaded[0].quirk.id
    write("evidence-a.json", write.one(sinks, "NOT NEEDED", date="2026-11-25"))
    folder = write("evidence-b.json", write.one(sinks, "NEEDED", date="2026-11-24"))

    assert _rows(folder, loaded)[1][f"`{sinks}`"] == ["not needed"]


def test_a_quirk_that_concerns_no_run_differs_from_one_without_evidence(write, loaded):
    sinks, rows = (item.quirk.id for item in loaded)
    elsewhere = "no evidence that can be run here: no run on this installation concerns the quirk (platform: wanted cpu)"
    folder = write("evidence.json", write.one(sinks, "INCONCLUSIVE", findings=False, reason=elsewhere))

    assert _rows(folder, loaded)[1] == {f"`{sinks}`": ["n/a"], f"`{rows}`": [""]}


def test_what_each_run_saw_is_below(write, loaded):
    page = "\n".join(evidence_page.blocks(write("evidence.json", write.one(loaded[0].quirk.id, "NEEDED")), loaded))

    assert "| vLLM 0.33.0, cuda (NVIDIA H100), runner v2, eager | with | it was seen | 0 s | 2026-11-25 |" in page
