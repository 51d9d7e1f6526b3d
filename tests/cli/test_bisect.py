"""``quirks bisect``: real commands that fail or pass depending on which quirks are disabled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quirks_core.cli.bisect import environment
from quirks_core.switches import Wishes

#: Built-in quirks; the commands below look for them in MODEL_QUIRKS_DISABLE.
X, Y, Z = "cp-gemma3", "rollout-logprobs-processed", "v1-runtime"
#: Switches the other quirks of every rollout off.
ALONE = [
    text
    for name in ("async-rollout-timeout", "generation-config-leak", "in-flight-update-cache")
    for text in ("--disable", name)
]
OFF = "import os, sys, time; off = set(os.environ.get('MODEL_QUIRKS_DISABLE', '').split(','));"
THIRD_PARTY = """
from quirks_core import Default, ModelFlag, Quirk, Severity, purpose, report

QUIRK = Quirk(
    id="acme-seed", title="A seed", flag=ModelFlag.ENVIRONMENT, match=purpose("rollout"),
    adjustments=(Default("engine.seed", 1),), severity=Severity.SLOW, references=(report("https://example.org/1"),),
)
"""


def command(code):
    """A command that is a line of Python; ``off`` is the set of names in MODEL_QUIRKS_DISABLE."""
    return ("--", sys.executable, "-c", OFF + code)


@pytest.fixture
def bisected(quirks, tmp_path, monkeypatch):
    """Runs ``quirks bisect --json`` on a line of Python; its logs go where pytest cleans up."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda code, *options: quirks("bisect", *options, "--json", *command(code))


def in_its_own_process(program, folder, *arguments):
    """Runs ``quirks bisect`` as a shell would: what the command writes goes where this process cannot redirect it."""
    line = [sys.executable, "-m", "quirks_core.cli", "bisect", *arguments]
    return subprocess.run(line, env=program(TMPDIR=str(folder)), capture_output=True, text=True, check=False)


def gone(pid):
    """Waits until a process has ended; False if it lives on."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8"):
            return True  # ended; nobody has asked for its exit status
        time.sleep(0.05)
    return False


def pid_in(file):
    """Waits until a process has written its id."""
    for _ in range(600):
        if file.exists() and (text := file.read_text(encoding="utf-8")).endswith("\n"):
            return int(text)
        time.sleep(0.05)
    raise AssertionError(f"{file} was never written")


@pytest.mark.parametrize(
    ("code", "explanations", "summary"),
    [
        (f"sys.exit({X!r} not in off)", [[X]], f"it fails unless {X} is disabled"),
        (f"sys.exit(not {{{X!r}, {Z!r}}} <= off)", [[X, Z]], f"it fails unless {X} and {Z} together are disabled"),
        (f"sys.exit({Y!r} in off)", [[Y]], f"it passes only because of {Y}"),
        (f"sys.exit({X!r} in off or {Y!r} in off)", [[X], [Y]], f"it passes only because of all of these: {X}; {Y}"),
        (f"sys.exit({{{X!r}, {Y!r}}} <= off)", [[X, Y]], f"it passes only because of {X} or {Y} (any one of them is enough)"),
        # interplay: Y off mends it, but not with Z off, unless X is off too
        (f"sys.exit(not ({Y!r} in off and ({Z!r} not in off or {X!r} in off)))", [[Y]], f"it fails unless {Y} is disabled"),
    ],
)
def test_the_quirks_that_explain_how_a_command_ends_are_named(bisected, code, explanations, summary):
    outcome = bisected(code)

    assert outcome.code == 0
    assert outcome.json["explanations"] == explanations
    assert outcome.json["summary"] == summary
    assert outcome.json["explained"] is True


@pytest.mark.parametrize(("status", "word"), [(0, "passes"), (3, "fails")])
def test_a_command_that_ends_the_same_is_a_finding_without_explanation(bisected, status, word):
    outcome = bisected(f"sys.exit({status})")

    assert outcome.code == 1
    assert (outcome.json["explained"], outcome.json["explanations"]) == (False, [])
    assert outcome.json["summary"].endswith(f"the command {word} with and without them")


def test_two_ways_to_fail_are_the_same_outcome(bisected):
    outcome = bisected(f"os.kill(os.getpid(), 9) if {X!r} in off else sys.exit(3)")

    assert outcome.code == 1
    assert [run["status"] for run in outcome.json["runs"]] == [3, -9, 3, -9]


def test_a_signal_is_a_failure(bisected):
    outcome = bisected(f"{X!r} in off or os.kill(os.getpid(), 11)")

    assert outcome.code == 0
    assert outcome.json["summary"] == f"it fails unless {X} is disabled"


def test_a_command_that_ends_differently_with_the_same_quirks_is_flaky(bisected, tmp_path):
    file = tmp_path / "count"
    outcome = bisected(f"n = os.path.getsize({str(file)!r}) if os.path.exists({str(file)!r}) else 0;"
                       f"open({str(file)!r}, 'a').write('x'); sys.exit(n != 0)")  # fmt: skip

    assert outcome.code == 1
    assert outcome.json["flaky"] is True
    assert "flaky" in outcome.json["summary"]


def test_the_time_limit_is_a_failure_and_ends_the_whole_process_group(bisected, model, tmp_path):
    file = tmp_path / "pid"
    child = f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    hangs = f"import subprocess; {Y!r} in off or subprocess.run([sys.executable, '-c', {child!r}])"
    only_y = ("--model", model(tie_word_embeddings=False), *ALONE, "--disable", Z)

    outcome = bisected(hangs, "--timeout", "4", *only_y)

    assert outcome.json["candidates"] == [Y]
    assert (outcome.code, outcome.json["summary"]) == (0, f"it fails unless {Y} is disabled")
    assert [run["status"] for run in outcome.json["runs"]] == [None, 0, None, 0]
    assert gone(pid_in(file))


def test_what_a_command_leaves_in_the_background_is_ended_before_the_next_run(bisected, tmp_path):
    file = tmp_path / "pid"
    child = f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"

    outcome = bisected(
        f"import subprocess; off == {{''}} and subprocess.Popen([sys.executable, '-c', {child!r}]) and "
        f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(file)!r}), True)]"
    )

    assert outcome.code == 1
    assert gone(pid_in(file))


def test_ctrl_c_ends_the_command_and_says_where_the_output_is(program, tmp_path):
    file = tmp_path / "pid"
    stubborn = (
        f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); open({str(file)!r}, 'w').write(f'{{os.getpid()}}\\n');"
    )
    line = [sys.executable, "-m", "quirks_core.cli", "bisect", *command(stubborn + "time.sleep(600)")]

    with subprocess.Popen(line, env=program(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pid = pid_in(file)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert b"output of every run: " in out
    assert b"Traceback" not in err
    assert gone(pid)


def test_the_output_is_kept_in_a_log_for_each_run_and_the_folder_is_named(program, tmp_path):
    done = in_its_own_process(program, tmp_path, "--json", *command(f"print('seen', file=sys.stderr); sys.exit({X!r} in off)"))

    result = json.loads(done.stdout)
    logs = [Path(run["log"]).read_text(encoding="utf-8") for run in result["runs"]]
    assert {Path(run["log"]).parent for run in result["runs"]} == {Path(result["logs"])}
    assert len(list(Path(result["logs"]).iterdir())) == len(logs)
    assert all(log.endswith("seen\n") for log in logs)
    assert all(
        f"MODEL_QUIRKS_DISABLE={','.join(run['disabled'])} " in log for log, run in zip(logs, result["runs"], strict=True)
    )
    assert f"output of every run: {result['logs']}" in done.stderr
    assert "seen" not in done.stderr


def test_with_verbose_the_output_is_shown_and_no_log_is_kept(program, tmp_path):
    done = in_its_own_process(program, tmp_path, "--json", "--verbose", *command("print('seen')"))

    assert done.stderr.count("seen") == 4
    assert json.loads(done.stdout)["logs"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_person_sees_every_run_with_its_size_result_and_seconds(quirks, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    outcome = quirks("bisect", *command(f"sys.exit(3 if {X!r} in off else 0)"))

    first, second, *_ = outcome.out.splitlines()
    assert first.startswith("run 1, 0 of ")
    assert " quirks disabled: passes after " in first
    assert ": fails (exit status 3) after " in second
    assert f"it passes only because of {X}" in outcome.out.splitlines()
    assert outcome.err == ""


def test_what_is_disabled_already_stays_so_in_every_run_and_is_no_candidate(bisected, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", X)

    outcome = bisected(f"sys.exit(not ({{{X!r}, {Z!r}}} <= off and {Y!r} in off))", "--disable", Z)

    assert outcome.json["explanations"] == [[Y]]
    assert {X, Z}.isdisjoint(outcome.json["candidates"])


def test_with_a_run_the_candidates_are_the_quirks_in_force_for_it(bisected, model):
    outcome = bisected("pass", "--model", model("gemma3_text"))

    assert Y in outcome.json["candidates"]
    assert X not in outcome.json["candidates"]


def test_without_a_run_the_candidates_are_all_that_are_installed(bisected, install):
    install("acme-seed", THIRD_PARTY)

    outcome = bisected("sys.exit('acme-seed' in off)")

    assert {X, Y, Z} <= set(outcome.json["candidates"])
    assert outcome.json["explanations"] == [["acme-seed"]]


def test_without_a_candidate_the_command_is_not_run(bisected, model, tmp_path):
    file = tmp_path / "ran"
    options = [*ALONE, *(option for name in (X, Y, Z) for option in ("--disable", name))]

    outcome = bisected(f"open({str(file)!r}, 'w')", "--model", model(tie_word_embeddings=False), *options)

    assert outcome.code == 1
    assert outcome.json["candidates"] == []
    assert "nothing to disable" in outcome.json["summary"]
    assert not file.exists()


def test_the_command_keeps_its_own_double_dash(quirks, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    outcome = quirks("bisect", "--json", *command("sys.exit(sys.argv[1:] != ['--', '--json', 'a'])"), "--", "--json", "a")

    assert outcome.json["passes"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "no-such-command"), "'no-such-command' is not found"),
        (("--", "/"), "'/' is not found, or is not executable"),
        (("--set", "engine.load_format=auto", "--", "true"), "give --model"),
        (("--disable", "v1-runtme", "--", "true"), "did you mean 'v1-runtime'?"),
        (("--timeout", "soon", "--", "true"), "'soon' is not a number of seconds above 0"),
        (("--timeout", "0", "--", "true"), "'0' is not a number of seconds above 0"),
        (("--timeout", "nan", "--", "true"), "'nan' is not a number of seconds above 0"),
        ((), "CMD"),
        (("--",), "CMD"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(quirks, arguments, message):
    outcome = quirks("bisect", *arguments)

    assert outcome.code == 2
    assert message in outcome.err


def test_a_file_that_the_system_cannot_execute_is_a_usage_error_and_leaves_no_folder(quirks, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "strange"
    file.write_bytes(b"\x7fELF, but not really")
    file.chmod(0o755)

    outcome = quirks("bisect", "--", file)

    assert outcome.code == 2
    assert "strange' cannot be started: " in outcome.err
    assert list(tmp_path.glob("quirks-bisect-*")) == []


@pytest.mark.parametrize(
    ("variables", "wishes", "off", "expected"),
    [
        ({}, Wishes(), (), {}),
        ({"A": "1"}, Wishes(), ("x",), {"A": "1", "MODEL_QUIRKS_DISABLE": "x"}),
        ({"MODEL_QUIRKS_DISABLE": " a, b,"}, Wishes(("c",)), ("y", "x"), {"MODEL_QUIRKS_DISABLE": "a,b,c,x,y"}),
        ({"MODEL_QUIRKS_FORCE": "x,z"}, Wishes(), ("x",), {"MODEL_QUIRKS_DISABLE": "x", "MODEL_QUIRKS_FORCE": "z"}),
        ({"MODEL_QUIRKS_FORCE": "x"}, Wishes(), ("x",), {"MODEL_QUIRKS_DISABLE": "x"}),
        (
            {"MODEL_QUIRKS_DISABLE": "a"},
            Wishes((), ("a", "x")),
            ("x",),
            {"MODEL_QUIRKS_FORCE": "a", "MODEL_QUIRKS_DISABLE": "x"},
        ),
    ],
)
def test_a_quirk_that_is_disabled_for_a_run_is_not_forced_in_it(variables, wishes, off, expected):
    before = dict(variables)

    assert environment(variables, wishes, off) == expected
    assert variables == before
