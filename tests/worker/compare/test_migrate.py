"""The environments of a migration, and the dumps in them.

Fake interpreters, scripts that answer as one would, stand for the processes that fail; a real engine dumps in ``tests/engine``.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.facts.packages import installed_version
from worker.lab.compare.dump import Dump
from worker.lab.compare.migrate import DumpFailedError, Environment, dump_in, dumps

OURS = version("model-quirks")
FACTS = ["0.30.0", OURS]
#: Reads where the dump goes; what follows says what it makes of it.
READ = "import os, signal\noutput = sys.argv[sys.argv.index('--output') + 1]\n"


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


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "print('loading', flush=True)\nsys.stderr.write('error: no such model\\n')\nsys.exit(3)",
            "ended with exit code 3.*loading.*error: no such model",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("print('done')", "wrote no dump.*done"),
    ],
)
def test_a_failed_dump_is_an_error_with_the_last_lines(interpreter, tmp_path, code, message):
    with pytest.raises(DumpFailedError, match=f"(?s){message}"):
        dump_in(Environment(interpreter(READ + code), "0.30.0", OURS), [], tmp_path / "A.json")


def test_b_scores_the_tokens_of_a_after_it_has_run(interpreter, dumped, tmp_path):
    dumped().write(tmp_path / "ready.json")
    write = f"open(output, 'w').write(open({str(tmp_path / 'ready.json')!r}).read())\n"
    note = f"print(*sys.argv[1:], file=open({str(tmp_path / 'calls')!r}, 'a'))\n"
    one = Environment(interpreter(READ + note + write), "0.30.0", OURS)

    both = dumps(one, one, ["--seed", "3"], tmp_path)

    assert both == (dumped(), Dump.read(tmp_path / "A.json"))
    a, b = (tmp_path / "A.json", tmp_path / "B.json")
    command = "-P -m quirks_core.cli parity dump --seed 3"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{command} --output {a}",
        f"{command} --tokens-of {a} --output {b}",
    ]


# ---- environments


def test_an_environment_is_named_by_interpreter_or_folder(interpreter, tmp_path):
    python = interpreter(name="venv/bin/python")

    assert Environment.of(str(python)) == Environment.of(str(tmp_path / "venv")) == Environment(python, "0.30.0", OURS)
    assert Environment.of(sys.executable).vllm == installed_version("vllm")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ([None, OURS], "vLLM is not installed for"),
        (
            ["0.30.0", None],
            r"(?s)model-quirks is not installed for .*in a clone of it:\n    \S+ -m pip install \. \./wheels/\w+",
        ),
        ("hello", "does not answer as a Python interpreter"),
    ],
)
def test_an_unsuitable_interpreter_is_a_usage_error(interpreter, facts, message):
    with pytest.raises(UsageError, match=message):
        Environment.of(str(interpreter(facts=facts)))
