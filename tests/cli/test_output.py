"""Where output goes that nobody takes, and what is said in JSON."""

from __future__ import annotations

import json

import pytest
from declarations import declared

LOUD = declared(
    "acme-loud",
    before='import os\nprint("at import")\nos.write(1, b"past Python\\n")\nos.system("echo in a child process")',
    match='purpose("rollout")',
)
SAID = ("at import", "past Python", "in a child process")


@pytest.mark.parametrize("command", ["plan", "list", "show acme-loud"])
def test_standard_output_is_one_json_document(program, install, site, model, command):
    install("acme-loud", LOUD)
    more = ["--model", model()] if command == "plan" else []

    done = program(*command.split(), *more, "--json", PYTHONPATH=str(site))

    assert json.loads(done.stdout)
    assert command == "list" or all(f"{text}\n" in done.stderr for text in SAID)  # it loads no plugin


def test_the_command_alone_prints_the_first_steps(quirks):
    outcome = quirks()

    assert (outcome.code, outcome.err, len(outcome.out.splitlines())) == (0, "", 5)
