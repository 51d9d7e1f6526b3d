"""Where output goes that nobody takes, and what is said in JSON."""

from __future__ import annotations

import json
import sys

import pytest
from declarations import declared


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-verb", "--json"], "invalid choice: 'no-such-verb'"),
        (["list", "--json", "--api-kye", "SECRET"], "unrecognized arguments: --api-kye"),
        (["plan", "--json", "--purpose", "train"], "argument --purpose: invalid choice: 'train'"),
        (["explain", "--json"], "the following arguments are required: ID"),
        (["plan", "--model", "/no/such/folder", "--json"], "does not exist"),
    ],
)
def test_an_error_is_json_where_json_was_asked_for(quirks, arguments, message):
    outcome = quirks(*arguments)

    assert (outcome.code, outcome.err, outcome.json.keys()) == (2, "", {"error", "notes", "refusals"})
    assert message in outcome.json["error"]
    assert "SECRET" not in outcome.out


def test_json_that_another_program_is_asked_for_is_not_ours(quirks):
    outcome = quirks("bisect", "--no-such-option", "--", "program", "--json")

    assert (outcome.code, outcome.out) == (2, "")
    assert "unrecognized arguments" in outcome.err


LOUD = declared(
    "acme-loud",
    before='import os\nprint("at import")\nos.write(1, b"past Python\\n")\nos.system("echo in a child process")',
    match='purpose("rollout")',
)
SAID = ("at import", "past Python", "in a child process")


@pytest.mark.parametrize("command", ["plan", "explain acme-loud", "list", "doctor", "show acme-loud"])
def test_standard_output_is_one_json_document(program, install, site, model, command):
    install("acme-loud", LOUD)
    more = ["--model", model()] if command.split()[0] in ("plan", "explain") else []

    done = program(*command.split(), *more, "--json", PYTHONPATH=str(site))

    assert json.loads(done.stdout)
    assert command == "list" or all(f"{text}\n" in done.stderr for text in SAID)  # it loads no plugin


def test_the_output_of_a_program_that_is_run_stays_its_own(program):
    done = program("run", "--json", "--", sys.executable, "-c", "print('its own')")

    assert (done.returncode, done.stdout) == (0, "its own\n")


def test_the_command_alone_prints_the_first_steps(quirks):
    outcome = quirks()

    assert (outcome.code, outcome.err, len(outcome.out.splitlines())) == (0, "", 5)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["show"], "the following arguments are required: ID"),
        (["plam"], "did you mean 'plan'?"),
        (["plan", "--purpose", "serv"], "did you mean 'serve'?"),
        (["plan", "--modle", "m"], "did you mean '--model'?"),
        (["plan", "--asume=vllm==1"], "did you mean '--assume'?"),
        (["--strict", "plan"], "write options after the command"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_a_usage_error_with_the_nearest(quirks, arguments, hint):
    outcome = quirks(*arguments)

    assert (outcome.code, outcome.err.startswith("usage: quirks")) == (2, True)
    assert outcome.err.rstrip().endswith(hint)
