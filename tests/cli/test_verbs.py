"""Every command has the same manners, and a command imports nothing but what it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from quirks_core.cli.main import VERBS

every_verb = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)


def modules_of(program, arguments):
    """The modules that are imported once a command has run, in a process of its own."""
    code = (
        "import json, sys\n"
        "from quirks_core.cli import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], env=program(), capture_output=True, text=True, check=True)
    return set(json.loads(run.stderr.splitlines()[-1]))


@every_verb
def test_every_verb_explains_itself_and_can_speak_json(quirks, verb):
    shown = quirks(verb.name, "--help")

    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: quirks {verb.name} ")
    assert "--json" in shown.out
    assert verb.help.split()[0] in shown.out


@every_verb
def test_every_verb_that_describes_a_run_takes_the_switches(quirks, verb):
    shown = quirks(verb.name, "--help").out

    options = ("--model", "--disable", "--force", "--strict", "--locked")
    assert all(option in shown for option in options) or not verb.describes_run


@every_verb
def test_an_option_that_does_not_exist_is_a_usage_error_of_every_verb(quirks, verb):
    outcome = quirks(verb.name, "--no-such-option")

    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_the_help_lists_every_verb_and_imports_none(quirks, program):
    shown = quirks("--help")

    assert shown.code == 0
    assert [verb.name for verb in VERBS if not re.search(rf"\n    {verb.name}\s", shown.out)] == []
    assert {f"quirks_core.cli.{verb.module}" for verb in VERBS} & modules_of(program, ["--help"]) == set()


def test_listing_imports_neither_pydantic_nor_pluggy_nor_any_other_verb(program):
    imported = modules_of(program, ["list", "--json"])

    assert {
        "pydantic",
        "pluggy",
        "yaml",
        "torch",
        "vllm",
        "ray",
        "transformers",
        "worker",
        "quirks_plugins",
    } & imported == set()
    others = {f"quirks_core.cli.{verb.module}" for verb in VERBS} - {"quirks_core.cli.listing"}
    assert others & imported == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "v1-runtime"],
        ["lock", "--output", "/dev/null"],
        ["audit-lifecycle"],
        ["doctor"],
        ["fingerprint", "pluggy:PluginManager"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_verb_imports_no_other_verb_and_nothing_heavy(program, arguments):
    imported = modules_of(program, arguments)

    own = next(verb.module for verb in VERBS if verb.name == arguments[0])
    assert {"torch", "vllm", "ray", "transformers"} & imported == set()
    assert f"quirks_core.cli.{own}" in imported
    assert {f"quirks_core.cli.{verb.module}" for verb in VERBS} & imported == {f"quirks_core.cli.{own}"}
