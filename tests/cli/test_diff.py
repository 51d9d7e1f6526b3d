"""``quirks diff``: two plans in files, what differs between them, and files that hold no plan."""

from __future__ import annotations

import io
import json
import sys

import pytest

GEMMA = "gemma3_text"
OLD = ("--assume", "vllm==0.9.1")
NEW = ("--assume", "vllm==0.32.0")


@pytest.fixture
def planned(quirks, model, tmp_path):
    """Writes a plan to a file, as ``quirks plan --json > FILE`` does."""

    def write(name, *options, model_type=GEMMA):
        file = tmp_path / name
        file.write_text(quirks("plan", "--model", model(model_type), *options, "--json").out, encoding="utf-8")
        return file

    return write


def error_line(outcome):
    """The error of a command that ended with 2."""
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    return line


def test_the_same_plan_is_one_line(quirks, planned):
    a, b = planned("a.json"), planned("b.json")

    outcome = quirks("diff", a, b)

    digest = json.loads(a.read_text(encoding="utf-8"))["digest"]
    assert (outcome.code, outcome.out) == (0, f"the same plan: {digest[:12]}\n")


def test_what_differs_is_told_with_both_sides(quirks, planned):
    outcome = quirks("diff", planned("a.json", *OLD), planned("b.json", *NEW, "--purpose", "eval"), "--json")

    found = outcome.json
    state = {item["id"]: (item["a"]["state"], item["b"]["state"]) for item in found["quirks"]}
    fact = {item["name"]: (item["a"], item["b"]) for item in found["facts"]}
    slot = {item["slot"]: item for item in found["slots"]}
    assert outcome.code == 1
    assert found["same"] is False
    assert state["gemma-normalizer-dummy-load"] == ("active", "dormant")
    assert fact["packages.vllm"] == ("0.9.1", "0.32.0")
    assert fact["purpose"] == ("rollout", "eval")
    assert slot["engine.load_format"]["a"]["before"] == "dummy"
    assert slot["engine.load_format"]["a"]["who"] == ["gemma-normalizer-dummy-load"]
    assert slot["engine.load_format"]["b"]["who"] == ["the configuration's default"]


def test_a_person_sees_a_table_with_both_sides(quirks, planned):
    outcome = quirks("diff", planned("a.json", *OLD), planned("b.json", *NEW))

    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in outcome.out.splitlines() if line.startswith("│")]
    assert outcome.code == 1
    assert ["fact", "packages.vllm", "0.9.1", "0.32.0"] in rows
    assert any(row[1:] == ["gemma-normalizer-dummy-load", "active", "dormant"] for row in rows)
    assert any(row[1:] == ["engine.load_format", "auto (gemma-normalizer-dummy-load)", "dummy (the configuration's default)"]
               for row in rows)  # fmt: skip
    assert "a.json, B = " in outcome.out


def test_a_refusal_of_one_side_is_shown_in_its_column(quirks, planned):
    dummy = ("--set", "engine.load_format=dummy")

    outcome = quirks("diff", planned("a.json", *dummy, *NEW), planned("b.json", *dummy, *OLD))

    assert outcome.code == 1
    assert "override: --disable gemma-normalizer-dummy-load" in outcome.out


def test_a_warning_alone_is_a_difference_that_changes_no_orders(quirks, planned, install):
    before = planned("a.json")
    install("acme-broken", "raise RuntimeError('imported')\n")

    outcome = quirks("diff", before, planned("b.json"))

    assert outcome.code == 1
    assert "every process gets the same orders from both" in outcome.out
    assert "acme-broken" in outcome.out


@pytest.mark.parametrize("place", [0, 1])
def test_one_of_the_plans_may_come_from_standard_input(quirks, planned, monkeypatch, place):
    files = [planned("a.json", *OLD), planned("b.json", *NEW)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(files[place].read_bytes())))
    names = [str(file) for file in files]
    names[place] = "-"

    outcome = quirks("diff", *names, "--json")

    assert outcome.json == quirks("diff", *files, "--json").json


def test_both_plans_cannot_come_from_standard_input(quirks):
    assert "not both" in error_line(quirks("diff", "-", "-"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "is not a plan (the whole: "),
        (b"{}", "is not a plan (digest: Field required; context: Field required)"),
        (b'{"error": "no model", "notes": [], "refusals": []}', "is not a plan (digest: Field required"),
    ],
)
def test_a_file_that_holds_no_plan_is_named_with_what_is_expected(quirks, planned, tmp_path, content, message):
    wrong = tmp_path / "wrong.json"
    wrong.write_bytes(content)

    line = error_line(quirks("diff", planned("a.json"), wrong))

    assert message in line
    assert "wrong.json" in line
    assert "expected a plan as 'quirks plan --json' writes it" in line


def test_a_plan_with_keys_of_another_version_is_told_by_its_keys(quirks, planned):
    file = planned("a.json")
    body = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**body, "colour": 1, "verdicts": [{"id": "x"}]}), encoding="utf-8")

    line = error_line(quirks("diff", file, file))

    assert "verdicts.0.title: Field required" in line
    assert "more)" in line


@pytest.mark.parametrize("name", ["none.json", "", "nul\0l"])
def test_a_file_that_cannot_be_read_is_named(quirks, tmp_path, name):
    line = error_line(quirks("diff", f"{tmp_path}/{name}", tmp_path / "b.json"))

    assert "cannot be read: " in line


def test_with_json_an_error_is_json(quirks, tmp_path):
    outcome = quirks("diff", tmp_path / "a.json", tmp_path / "b.json", "--json")

    assert outcome.code == 2
    assert "a.json cannot be read" in outcome.json["error"]
