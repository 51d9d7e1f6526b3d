"""``quirks bisect``: real commands that fail or pass depending on which quirks are disabled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from installed import needs_vllm

#: Built-in quirks; the commands below look for them in MODEL_QUIRKS_DISABLE.
X, Y, Z = "cp-gemma3", "rollout-logprobs-processed", "double-bos"
OFF = "import os, sys, time; off = set(os.environ.get('MODEL_QUIRKS_DISABLE', '').split(','));"


def command(code):
    """A command that is a line of Python; ``off`` is the set of names in MODEL_QUIRKS_DISABLE."""
    return ("--", sys.executable, "-c", OFF + code)


@pytest.fixture(autouse=True)
def logs(monkeypatch, tmp_path):
    """Logs go where pytest cleans up."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def bisected(quirks):
    """Runs ``quirks bisect --json`` on a line of Python."""
    return lambda code, *options: quirks("bisect", *options, "--json", *command(code))


@pytest.mark.parametrize(
    ("code", "explanation", "summary"),
    [
        (f"sys.exit({X!r} not in off)", [X], f"it passes with {X} disabled"),
        (f"sys.exit(not {{{X!r}, {Z!r}}} <= off)", [X, Z], f"it passes with {X} and {Z} disabled together"),
        (f"sys.exit({{{X!r}, {Y!r}}} <= off)", [X, Y], f"it fails with {X} and {Y} disabled together"),
        # a signal is a failure
        (f"{X!r} in off or os.kill(os.getpid(), 11)", [X], f"it passes with {X} disabled"),
    ],
)
def test_the_quirks_that_explain_how_a_command_ends_are_named(bisected, code, explanation, summary):
    outcome = bisected(code)

    assert (outcome.code, outcome.json["explained"]) == (0, True)
    assert (outcome.json["explanation"], outcome.json["summary"]) == (explanation, summary)


def test_the_time_limit_is_a_failure(bisected, model):
    run = ("--model", model(tie_word_embeddings=False), "--disable", "all", "--force", Y)
    outcome = bisected(f"{Y!r} in off or time.sleep(600)", "--timeout", "8", *run)  # a process may take seconds to start

    assert outcome.json["candidates"] == [Y]
    assert (outcome.code, outcome.json["summary"]) == (0, f"it passes with {Y} disabled")
    assert [run["status"] for run in outcome.json["runs"]] == [None, 0, None, 0]


def test_ctrl_c_ends_with_the_place_of_the_output(quirks, monkeypatch):
    """`tests/core/test_child_process.py` has the end of the command."""
    monkeypatch.setattr("quirks_core.base.child_process.run", Mock(side_effect=KeyboardInterrupt))

    outcome = quirks("bisect", *command("pass"))

    assert (outcome.code, "output of every run: " in outcome.out) == (130, True)


def test_the_output_is_kept_in_a_log_for_each_run(program, tmp_path):
    line = ["bisect", "--json", *command(f"print('seen', file=sys.stderr); sys.exit({X!r} in off)")]

    kept = program(*line, TMPDIR=str(tmp_path))

    result = json.loads(kept.stdout)
    logs = {run["log"]: f"MODEL_QUIRKS_DISABLE={','.join(run['disabled'])} " for run in result["runs"]}
    texts = {str(file): file.read_text(encoding="utf-8") for file in Path(result["logs"]).iterdir()}
    assert texts.keys() == logs.keys()
    assert all(logs[name] in text and text.endswith("seen\n") for name, text in texts.items())
    assert f"output of every run: {result['logs']}" in kept.stderr
    assert "seen" not in kept.stderr


def test_a_quirk_that_is_disabled_already_stays_disabled(bisected, monkeypatch):
    """One that the environment forces can be disabled in a run."""
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", X)
    monkeypatch.setenv("MODEL_QUIRKS_FORCE", Y)

    outcome = bisected(f"sys.exit(not ({{{X!r}, {Z!r}}} <= off and {Y!r} in off))", "--disable", Z)

    assert outcome.json["explanation"] == [Y]
    assert {X, Z}.isdisjoint(outcome.json["candidates"])


@needs_vllm
def test_the_candidates_of_a_run_are_the_quirks_in_force_for_it(bisected, model, tmp_path):
    file = tmp_path / "ran"

    of_a_run = bisected("pass", "--model", model("gemma3_text")).json["candidates"]
    nothing = bisected(f"open({str(file)!r}, 'w')", "--model", model(), "--disable", "all")

    assert (Y in of_a_run, X in of_a_run) == (True, False)
    assert (nothing.code, nothing.json["candidates"], file.exists()) == (1, [], False)
    assert "nothing to disable" in nothing.json["summary"]


def test_the_command_keeps_its_own_double_dash(quirks):
    outcome = quirks("bisect", "--json", *command("sys.exit(sys.argv[1:] != ['--', '--json', 'a'])"), "--", "--json", "a")

    assert outcome.json["passes"] is True
