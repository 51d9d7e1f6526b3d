"""``quirks matrix``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import pytest

from quirks_core.context import ModelFacts, RunContext
from quirks_core.matrix import make_matrix
from quirks_core.packages import installed_versions
from quirks_core.registry import Registry
from quirks_core.switches import Switches

GEMMA = "gemma3_text"
NORMALIZER = "gemma-normalizer-dummy-load"
DUMMY = ("--set", "engine.load_format=dummy")


def states(outcome, quirk):
    """The states of a quirk by version."""
    (row,) = [row for row in outcome.json["rows"] if row["id"] == quirk]
    return {version: cell["state"] for version, cell in row["cells"].items()}


def cells(outcome):
    """The rows of the table by their first cell."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in outcome.out.splitlines() if line.startswith("│")]
    return {first: rest for first, *rest in rows}


def test_every_version_gets_the_state_that_its_own_plan_has(quirks, model):
    versions = ["0.9.1", "0.9.2rc1", "0.9.2", "0.26", "0.32"]

    outcome = quirks("matrix", "--model", model(GEMMA), "--vllm", ",".join(versions), "--all-quirks", "--json")

    assert outcome.code == 0
    assert [column["version"] for column in outcome.json["columns"]] == versions
    for column in outcome.json["columns"]:
        plan = quirks("plan", "--model", model(GEMMA), "--assume", f"vllm=={column['version']}", "--json").json
        assert column["digest"] == plan["digest"]
        assert column["warnings"] == plan["warnings"]
        alone = {verdict["id"]: {"state": verdict["state"], "because": verdict["because"]} for verdict in plan["verdicts"]}
        assert {row["id"]: row["cells"][column["version"]] for row in outcome.json["rows"]} == alone


def test_a_fixed_bug_is_active_before_the_fix_and_dormant_after_it(quirks, model):
    outcome = quirks("matrix", "--model", model(GEMMA), "--vllm", "0.32,0.9.1", "--vllm", "0.9.2", "--json")

    assert states(outcome, NORMALIZER) == {"0.32": "dormant", "0.9.1": "active", "0.9.2": "dormant"}
    assert [column["version"] for column in outcome.json["columns"]] == ["0.32", "0.9.1", "0.9.2"]


def test_a_version_that_refuses_the_run_is_a_finding_with_its_reason(quirks, model):
    outcome = quirks("matrix", "--model", model(GEMMA), *DUMMY, "--vllm", "0.9.1,0.32", "--json")

    refused = {
        column["version"]: [refusal["quirks"][0]["id"] for refusal in column["refusals"]] for column in outcome.json["columns"]
    }
    assert outcome.code == 1
    assert refused == {"0.9.1": [NORMALIZER], "0.32": []}


def test_a_source_build_that_says_nothing_is_unknown(quirks, model):
    outcome = quirks("matrix", "--model", model(GEMMA), "--vllm", "0.1.dev1", "--json")

    assert states(outcome, NORMALIZER) == {"0.1.dev1": "unknown"}


def test_a_person_sees_a_column_for_each_version_and_a_legend(quirks, model):
    outcome = quirks("matrix", "--model", model(GEMMA), *DUMMY, "--vllm", "0.9.0,0.9.1,0.32", "--disable", "logprobs")

    table = cells(outcome)
    assert table[NORMALIZER] == ["active", "active", "dormant"]
    assert table["rollout-logprobs-processed"] == ["off", "off", "off"]
    assert table["the run"] == ["refused", "refused", "ok"]
    assert "dormant: would, but that version is not affected" in outcome.out
    assert "unknown:" not in outcome.out
    assert f"refused on 0.9.0, 0.9.1: {NORMALIZER}" in outcome.out


def test_quirks_that_concern_the_run_nowhere_are_counted_and_shown_on_demand(quirks, model):
    few = quirks("matrix", "--model", model(), "--vllm", "0.32", "--json").json
    everything = quirks("matrix", "--model", model(), "--vllm", "0.32", "--all-quirks", "--json").json
    shown = quirks("matrix", "--model", model(), "--vllm", "0.32").out

    left = {row["id"] for row in everything["rows"]} - {row["id"] for row in few["rows"]}
    assert "cp-gemma3" in left
    assert (few["left_out"], everything["left_out"]) == (len(left), 0)
    assert f"{len(left)} other quirks" in shown
    assert "cp-gemma3" not in shown


def test_an_equal_version_is_left_out_and_noted(quirks, model):
    outcome = quirks("matrix", "--model", model(), "--vllm", "0.32.0, 0.32,0.31", "--json")

    assert [column["version"] for column in outcome.json["columns"]] == ["0.32.0", "0.31"]
    assert outcome.json["notes"] == ["--vllm 0.32 is given already, and left out"]
    assert "note: --vllm 0.32 is given" in quirks("matrix", "--model", model(), "--vllm", "0.32.0,0.32").out


def test_the_model_is_read_once(quirks, model, monkeypatch):
    reads = []
    read = ModelFacts.read.__func__
    monkeypatch.setattr(ModelFacts, "read", classmethod(lambda cls, *rest: reads.append(rest) or read(cls, *rest)))

    quirks("matrix", "--model", model(), "--vllm", "0.26,0.30,0.31,0.32")

    assert len(reads) == 1


def test_what_a_context_has_worked_out_for_the_installed_version_does_not_count_for_another():
    model = ModelFacts(name="qwen3", path="qwen3", config={"model_type": "qwen3"})
    context = RunContext(model=model, packages=installed_versions(), environment={"VLLM_MADE_UP": "1"})
    assert context.fact("environment.unread") == ("VLLM_MADE_UP",)

    matrix = make_matrix(Registry.load(), context, ["0.9.1"], Switches())

    (row,) = [row for row in matrix.rows if row.id == "unread-environment"]
    assert row.cells["0.9.1"].state == "unknown"


def test_the_other_assumptions_and_the_configuration_count(quirks, model, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {model()}\nquirks: {{disable: [logprobs]}}\n", encoding="utf-8")

    outcome = quirks("matrix", "--config", file, "--purpose", "eval", "--assume", "platform==cuda", "--vllm", "0.32", "--json")

    assert outcome.json["purpose"] == "eval"
    assert states(outcome, "rollout-logprobs-processed") == {"0.32": "disabled"}


def test_a_broken_plugin_is_a_warning_on_every_version(quirks, model, install):
    install("acme-broken", "raise RuntimeError('imported')\n")

    outcome = quirks("matrix", "--model", model(), "--vllm", "0.31,0.32")

    assert outcome.code == 0
    assert [line for line in outcome.out.splitlines() if line.startswith("warning on 0.31, 0.32: ") and "acme-broken" in line]
    assert outcome.out.count("RuntimeError: imported") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--vllm", "0.9,new"), "--vllm: 'new' is not a version"),
        (("--vllm", "0.9,,0.11"), "--vllm: '' is not a version"),
        (("--vllm", ""), "--vllm: '' is not a version"),
        (("--vllm", "0.9", "--assume", "vllm==0.9"), "give the versions with --vllm"),
        (("--vllm", "0.9", "--assume", "vlm==0.9"), "did you mean 'vllm'?"),
        (("--vllm", "0.9", "--disable", "v1-runtme"), "did you mean 'v1-runtime'?"),
        ((), "--vllm"),
    ],
)
def test_what_cannot_be_used_is_a_usage_error(quirks, model, options, message):
    outcome = quirks("matrix", "--model", model(), *options)

    assert outcome.code == 2
    assert message in outcome.err


def test_no_model_says_how_to_give_one(quirks):
    assert "give --model" in quirks("matrix", "--vllm", "0.32").err
