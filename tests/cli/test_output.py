"""Where output goes that nobody takes, and what is said in JSON."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def redirected(model):
    """Runs a command as a shell does that redirects its output."""

    def run(arguments, redirection, **variables):
        command = f'"$PYTHON" -m quirks_core.cli {arguments} {redirection}'
        environ = {**os.environ, "PYTHON": sys.executable, "MODEL": str(model()), **variables}
        return subprocess.run(command, shell=True, env=environ, capture_output=True, text=True, check=False)  # noqa: S602 - ours

    return run


@pytest.mark.parametrize("arguments", ["list", "plan --model $MODEL --json", "plan --json", "--help"])
@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "error: the output cannot be written: No space left on device\n"),
        (">&-", "error: standard output is closed; write >/dev/null if nobody reads it\n"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_takes_nothing_is_one_line_and_exit_code_2(redirected, arguments, redirection, message, unbuffered):
    done = redirected(arguments, redirection, PYTHONUNBUFFERED=unbuffered)

    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize(("arguments", "code"), [("list", 0), ("plan", 2), ("no-such-verb", 2)])
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_what_cannot_be_said_on_standard_error_changes_neither_the_output_nor_the_exit_code(
    redirected, arguments, code, redirection
):
    plain, done = redirected(arguments, ""), redirected(arguments, redirection)

    assert (plain.returncode, done.returncode, done.stdout) == (code, code, plain.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-verb", "--json"], "invalid choice: 'no-such-verb'"),
        (["--json", "plan"], "unrecognized arguments: --json"),
        (["--json"], "the following arguments are required"),
        (["plan", "--json", "--purpose", "train"], "argument --purpose: invalid choice: 'train'"),
        (["explain", "--json"], "the following arguments are required: ID"),
    ],
)
def test_wrong_arguments_are_an_error_in_json_where_json_was_asked_for(quirks, arguments, message):
    outcome = quirks(*arguments)

    assert (outcome.code, outcome.err, outcome.json.keys()) == (2, "", {"error", "notes", "refusals"})
    assert message in outcome.json["error"]


def test_json_that_another_program_is_asked_for_is_not_ours(quirks):
    outcome = quirks("bisect", "--no-such-option", "--", "program", "--json")

    assert (outcome.code, outcome.out) == (2, "")
    assert "unrecognized arguments" in outcome.err
