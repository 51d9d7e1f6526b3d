"""``quirks diff``: two plans in files, what differs between them, and files that hold no plan."""

from __future__ import annotations

import io
import json
import sys

import pytest

OLD = ("--assume", "vllm==0.9.1")
NEW = ("--assume", "vllm==0.32.0")
NORMALIZER = "gemma-normalizer-dummy-load"


@pytest.fixture
def planned(quirks, model, tmp_path):
    """Writes a plan to a file, as ``quirks plan --json > FILE`` does."""

    def write(name, *options):
        file = tmp_path / name
        file.write_text(quirks("plan", "--model", model("gemma3_text"), *options, "--json").out, encoding="utf-8")
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


def test_every_difference_is_reported_with_both_sides(quirks, planned):
    a, b = planned("a.json", *OLD), planned("b.json", *NEW, "--purpose", "eval")

    found, shown = quirks("diff", a, b, "--json"), quirks("diff", a, b)

    state = {item["name"]: (item["a"]["state"], item["b"]["state"]) for item in found.json["quirks"]}
    fact = {item["name"]: (item["a"], item["b"]) for item in found.json["facts"]}
    slot = {item["name"]: item for item in found.json["slots"]}["engine.load_format"]
    assert (found.code, shown.code, found.json["same"]) == (1, 1, False)
    assert state[NORMALIZER] == ("active", "dormant")
    assert (fact["packages.vllm"], fact["purpose"]) == (("0.9.1", "0.32.0"), ("rollout", "eval"))
    assert (slot["a"]["before"], slot["a"]["who"], slot["b"]["who"]) == ("dummy", [NORMALIZER], ["the configuration's default"])
    assert shown.out.splitlines()[0] == f"{a} → {b}"
    for line in (
        "facts: packages.vllm: 0.9.1 → 0.32.0\n",
        f"quirks: {NORMALIZER}.state: active → dormant\n",
        f'slots: engine.load_format.who: ["{NORMALIZER}"] → ["the configuration\'s default"]\n',
    ):
        assert line in shown.out


def test_a_refusal_of_one_side_is_shown_in_its_column(quirks, planned):
    dummy = ("--set", "engine.load_format=dummy")

    outcome = quirks("diff", planned("a.json", *dummy, *NEW), planned("b.json", *dummy, *OLD))

    assert outcome.code == 1
    assert f"override: --disable {NORMALIZER}" in outcome.out


def test_a_warning_alone_is_a_difference_that_changes_nothing_in_any_process(quirks, planned, install):
    before = planned("a.json")
    install("acme-broken", "raise RuntimeError('imported')\n")

    outcome = quirks("diff", before, planned("b.json"))

    assert outcome.code == 1
    assert "both do the same in every process" in outcome.out
    assert "acme-broken" in outcome.out


@pytest.mark.parametrize("place", [0, 1])
def test_one_of_the_plans_but_not_both_may_come_from_standard_input(quirks, planned, monkeypatch, place):
    files = [planned("a.json", *OLD), planned("b.json", *NEW)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(files[place].read_bytes())))
    names = [str(file) for file in files]
    names[place] = "-"

    assert quirks("diff", *names, "--json").json == quirks("diff", *files, "--json").json
    assert "not both" in error_line(quirks("diff", "-", "-"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "is not a plan (the whole: "),
        (b"{}", "is not a plan (digest: Field required; context: Field required)"),
        (b'{"error": "no model", "notes": [], "refusals": []}', "is not a plan (digest: Field required"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else "",
)
def test_a_file_that_holds_no_plan_is_named_with_what_is_expected(quirks, planned, tmp_path, content, message):
    wrong = tmp_path / "wrong.json"
    wrong.write_bytes(content)

    line = error_line(quirks("diff", planned("a.json"), wrong))

    for words in (message, "wrong.json", "expected a plan as 'quirks plan --json' writes it"):
        assert words in line


@pytest.mark.parametrize("name", ["none.json", "", "nul\0l"])
def test_a_file_that_cannot_be_read_is_named(quirks, tmp_path, name):
    assert "cannot be read: " in error_line(quirks("diff", f"{tmp_path}/{name}", tmp_path / "b.json"))
