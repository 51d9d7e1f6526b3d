"""``quirks plan --vllm A,B``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import re

from declarations import declared
from installed import needs_vllm

GEMMA = "gemma3_text"
NORMALIZER = "gemma-normalizer-dummy-load"
DUMMY = ("--set", "engine.load_format=dummy")


def test_every_version_gets_the_state_that_its_own_plan_has(quirks, model):
    versions = ["0.32", "0.9.1", "0.9.2rc1", "0.9.2", "0.1.dev1"]

    outcome = quirks(
        "plan", "--model", model(GEMMA), "--vllm", "0.32, 0.9.1,0.32.0", "--vllm", ",".join(versions[2:]), "--verbose", "--json"
    )

    assert outcome.code == 0
    assert [column["version"] for column in outcome.json["columns"]] == versions
    rows = {row["id"]: row["cells"] for row in outcome.json["rows"]}
    states = [rows[NORMALIZER][version]["state"] for version in versions]
    assert states == ["dormant", "active", "active", "dormant", "unknown"]
    for column in outcome.json["columns"]:
        plan = quirks("plan", "--model", model(GEMMA), "--assume", f"vllm=={column['version']}", "--json").json
        assert (column["digest"], column["warnings"]) == (plan["digest"], plan["warnings"])
        alone = {verdict["id"]: {"state": verdict["state"], "because": verdict["because"]} for verdict in plan["verdicts"]}
        assert {name: cells[column["version"]] for name, cells in rows.items()} == alone


def test_a_version_that_nobody_examined_is_not_called_unaffected(quirks, model, install):
    """For an author who knows what a range means, it is."""
    install("acme-known", declared("acme-known", match='purpose("rollout")', affected='Affected("vllm", introduced="0.26.0")'))
    run = ("--model", model(), "--set", "engine.quantization=fp8")

    shown = quirks("plan", *run, "--vllm", "0.22.0,0.32.0").out
    old = quirks("plan", *run, "--vllm", "0.22.0").out

    assert re.search(r"^quantized-rollout +unexamined +active$", shown, re.M)
    assert re.search(r"^acme-known +dormant +active$", shown, re.M)
    assert "unexamined: may concern the run, but nobody examined that version; off there\n" in shown
    (note,) = [
        line for line in old.splitlines() if line.startswith("warning: not examined on vllm 0.22.0, and therefore off: ")
    ]
    assert ("quantized-rollout" in note, "acme-known" in note) == (True, False)
    explained = {
        name: quirks("explain", name, *run, "--assume", "vllm==0.22.0").out for name in ("quantized-rollout", "acme-known")
    }
    assert "is off: nobody examined it on that version\n" in explained["quantized-rollout"]
    assert "is dormant: the installed version is not affected\n" in explained["acme-known"]


def test_beyond_the_newest_release_that_was_read_the_plan_warns(quirks, model):
    plans = {text: quirks("plan", "--model", model(), "--vllm", text).out for text in ("0.33.1", "0.34.0rc1")}

    line = "warning: vllm {} is newer than 0.33, the newest release that was read: "
    assert [line.format(text) in shown for text, shown in plans.items()] == [False, True]


@needs_vllm
def test_a_table_has_a_column_for_each_version_with_a_legend(quirks, model):
    line = ["plan", "--model", model(GEMMA), *DUMMY, "--vllm", "0.9.0,0.9.1,0.32", "--disable", "logprobs"]

    outcome, as_json = quirks(*line), quirks(*line, "--json").json
    few, everything = as_json["rows"], quirks(*line, "--verbose", "--json").json["rows"]

    refused = [[refusal["quirks"][0]["id"] for refusal in column["refusals"]] for column in as_json["columns"]]
    assert (outcome.code, refused) == (1, [[NORMALIZER], [NORMALIZER], []])
    table = {first: rest for first, *rest in (text.split() for text in outcome.out.splitlines() if text)}
    assert table[NORMALIZER] == ["active", "active", "dormant"]
    assert table["rollout-logprobs-processed"] == ["off", "off", "off"]
    assert table["the"] == ["run", "refused", "refused", "ok"]
    assert "cp-gemma3" not in table
    assert "dormant: would, but that version is not affected" in outcome.out
    assert "unknown:" not in outcome.out
    assert f"{len(everything) - len(few)} other quirks" in outcome.out
