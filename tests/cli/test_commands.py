"""Every command has the same manners, and imports nothing but what it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from declarations import declared
from programs import run_python

from quirks_core.cli.command import BUILT_IN, find_commands, load_command

COMMANDS = find_commands()
OF_A_RUN = ("--model", "--config", "--purpose", "--set", "--assume", "--disable", "--force", "--strict", "--locked")
HEAVY = {"torch", "vllm", "ray", "transformers"}
#: Runs commands in processes that are alike, and prints a line for each: the modules that are imported once it has run.
IMPORTS = """
import json, os, sys
from quirks_core.cli import main
for arguments in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    sys.stdout = sys.stderr = open(os.devnull, "w")
    try:
        main(arguments)
    except SystemExit:
        pass
    os.write(1, json.dumps(sorted(sys.modules)).encode() + b"\\n")
    os._exit(0)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_lists_the_options_that_it_shares(quirks, name):
    command = load_command(COMMANDS[name])

    shown = quirks(name, "--help")

    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: quirks {name} ")
    assert command.help in " ".join(shown.out.split())
    assert "--json" in shown.out
    assert all(re.search(rf"\n  {option} ", shown.out) for option in OF_A_RUN) is command.describes_run


def test_the_help_lists_every_command_in_a_group(quirks):
    assert {"audit", "prove", "parity"} <= COMMANDS.keys() - BUILT_IN.keys()  # those that start engines

    shown = quirks("--help")

    assert shown.code == 0
    groups = {
        title: re.findall(r"^  (\S+)", text, re.M) for title, text in re.findall(r"^(\w.*):\n((?:  .*\n)+)", shown.out, re.M)
    }
    assert sorted(name for names in groups.values() for name in names if not name.startswith("-")) == sorted(COMMANDS)
    assert {"plan", "explain"} < set(groups["look at quirks and plans"])
    assert "commands of other packages" not in groups


def test_commands_of_other_packages_have_a_group_of_their_own(quirks, install):
    command = "from quirks_core.cli.command import Command\nCOMMAND = Command('50% \\x1b[2J', print)\n"
    points = {"acme": "acme_verb:COMMAND", "audit": "acme_verb:COMMAND"}
    install("acme-verb", points, group="model_quirks.commands", acme_verb=command)

    shown = quirks("--help")

    assert shown.out.partition("commands of other packages:\n")[2].split("\n")[0].split() == ["acme", "50%", r"\x1b[2J"]
    assert "\x1b" not in shown.out


def test_a_command_imports_only_what_it_needs(model):
    runs = {
        "list": ["list", "--json"],
        "show": ["show", "double-bos"],
        "lock": ["lock", "--output", "/dev/null"],
        "doctor": ["doctor"],
        "fingerprint": ["fingerprint", "pluggy._manager:PluginManager"],
        "plan": ["plan", "--model", str(model("gemma3_text"))],
    }
    where = {name: f"quirks_core.cli.{place.partition(':')[0]}" for name, place in BUILT_IN.items()}

    done = run_python("-c", IMPORTS, json.dumps([["--help"], *runs.values()]))

    of_help, *imported = (set(json.loads(line)) for line in done.stdout.splitlines())
    assert of_help & HEAVY == set()
    for name, modules in zip(runs, imported, strict=True):
        assert modules & {*HEAVY, *where.values()} == {where[name]}
    assert imported[0] & {"pydantic", "pluggy", "yaml", "worker", "quirks_plugins"} == set()  # to list takes metadata alone


@pytest.mark.parametrize("words", [["list"], ["--help"], ["plan", "--help"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_gets_no_traceback(words):
    command = [sys.executable, "-u", "-m", "quirks_core.cli", *words]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        complaint = process.stderr.read()

    assert (complaint, process.returncode) == ("", 141)


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
