"""The script of the learning curves: what it rewards, plans, resumes and draws. The runs need minutes and are no test."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
from script_modules import load_script

from quirks_core.configuration.config import GenerationConfig
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry

_SCRIPT = Path(__file__).parents[2] / "examples" / "learning_curves.py"
_DRAWS = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs the extra 'examples' (matplotlib)")


@pytest.fixture(scope="module")
def curves() -> ModuleType:
    return load_script(_SCRIPT)


@pytest.fixture
def options(tmp_path):
    """Options of the command line, for two steps."""
    out = tmp_path / "out"
    out.mkdir()
    return argparse.Namespace(out=out, model=tmp_path / "model", prompts=8, group=8, steps=2, jobs=2, minutes=1, tiny=False)


def write(curves, folder, name, seed, rewards, *, difference=0.01):
    """Writes the file of a run."""
    file = curves.file_of(folder, name, seed)
    curves.add(file, arm=name, seed=seed, prompts=8, group=8, device="cpu", versions={})
    for step, value in enumerate(rewards, 1):
        curves.add(file, step=step, reward=value, difference=difference, ratio=1.0, grad_norm=0.5)
    return file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", 1.0),
        ("paris.", 1.0),
        ("The capital of France is Paris.", 1 / 6),
        ("Paris Paris Paris", 1 / 3),
        ("Parisian", 0.0),
        ("London", 0.0),
        ("", 0.0),
        ("?!", 0.0),
    ],
)
def test_the_reward_is_the_share_of_words_that_are_the_answer_which_counts_once(curves, text, expected):
    assert curves.reward(text, "Paris") == expected


def test_every_answer_earns_the_whole_reward(curves):
    assert all(curves.reward(answer, answer) == 1 for answer in curves.QUESTIONS.values())


def test_a_repeated_question_earns_no_reward(curves):
    repeated = [question for question, answer in curves.QUESTIONS.items() if curves.reward(question, answer)]
    assert repeated == []


@pytest.mark.parametrize(
    ("name", "logprobs", "keeps_cache", "is_salted"),
    [
        ("worker", "processed_logprobs", False, True),
        ("worker-raw", None, False, True),
        ("worker-base", "processed_logprobs", False, True),
        ("worker-stale", "processed_logprobs", True, False),
        ("worker-kept", "processed_logprobs", True, True),
    ],
)
def test_an_arm_of_the_worker_plans_its_fault_alone(curves, options, name, logprobs, keeps_cache, is_salted):
    options.model.mkdir()
    (options.model / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    config = GenerationConfig.parse(curves.configuration(curves.ARMS[name], options, 0, on_gpu=False))

    plan = make_plan(config, PlanOptions.gather(call=SwitchNames(curves.ARMS[name].disable), environ={}), environ={})

    assert plan.value("engine.logprobs_mode") == logprobs
    assert plan.value("refit.clear_cache") is not keeps_cache
    assert is_salted is any(patch.quirk.id == "prefix-cache-after-update" for patch in plan.patches)
    assert plan.value("engine.dtype") == "float32"


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_hook_knows_every_value_that_an_arm_gives_it(curves, on_gpu):
    known = {loaded.quirk.id for loaded in Registry.load().loaded} | {"all"}
    for name, arm in curves.ARMS.items():
        found = curves.variables(arm, jobs=8, on_gpu=on_gpu)
        settings = HookSettings.read(found)

        assert (settings is not None) == name.startswith("trl")
        assert settings is None or settings.given["engine.enforce_eager"] is True
        assert set(arm.disable) <= known
        assert set(filter(None, [found.get("MODEL_QUIRKS_FORCE")])) <= known


def test_only_an_incomplete_run_is_repeated(curves, options, monkeypatch):
    complete = write(curves, options.out, "trl", 0, [0.1, 0.2])
    cut = write(curves, options.out, "trl", 1, [0.1, 0.2])
    cut.write_text(cut.read_text(encoding="utf-8")[:-4], encoding="utf-8")
    before = complete.read_bytes()
    made = []
    monkeypatch.setattr(curves, "command", lambda _, *run: made.append(run) or [sys.executable, "-c", ""])

    missing = curves.run_all(options, [("trl", 0), ("trl", 1)], on_gpu=False)

    assert made == [("trl", 1)]
    assert missing == []
    assert complete.read_bytes() == before


def test_a_run_that_fails_is_named_after_a_second_attempt(curves, options, monkeypatch):
    made = []
    monkeypatch.setattr(curves, "command", lambda _, *run: made.append(run) or [sys.executable, "-c", "raise SystemExit(3)"])

    missing = curves.run_all(options, [("trl", 0)], on_gpu=False)

    assert made == [("trl", 0)] * 2
    assert missing == [f"trl-0: {options.out / 'trl-0.log'} says why it ended"]


def test_a_run_without_time_left_is_named_as_missing(curves, options, monkeypatch):
    options.minutes, options.jobs = 0.02, 1
    monkeypatch.setattr(curves, "command", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"])

    missing = curves.run_all(options, [("trl", 0), ("trl", 1)], on_gpu=False)

    assert missing == ["trl-0: no time left", "trl-1: no time left"]


def test_an_interrupt_ends_the_series_of_runs(curves, options, monkeypatch):
    options.jobs = 1
    code = "import time; print('runs', flush=True); time.sleep(600)"
    made = []
    monkeypatch.setattr(curves, "command", lambda _, *run: made.append(run) or [sys.executable, "-c", code])
    threading.Thread(target=interrupt_when, args=(options.out / "trl-0.log",)).start()

    with pytest.raises(KeyboardInterrupt):
        curves.run_all(options, [("trl", 0), ("trl", 1)], on_gpu=False)

    assert made == [("trl", 0)]


def interrupt_when(file):
    """Interrupts the main thread, as Ctrl-C does, when a file has a line."""
    while not file.exists() or not file.read_text(encoding="utf-8"):
        time.sleep(0.05)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_band_summarises_the_smoothed_runs_that_are_complete(curves):
    assert curves.band([[0.0, 1.0], [1.0, 1.0], [9.0]]) == [(0.0, 0.5, 1.0), (0.5, 0.75, 1.0)]
    assert curves.band([[float(value) for value in range(10)]])[-1] == (7.0, 7.0, 7.0)  # of 5, 6, 7, 8 and 9


def test_the_data_have_the_results_of_each_seed_of_each_arm(curves, options):
    write(curves, options.out, "worker", 0, [0.1, 0.2])
    write(curves, options.out, "worker", 1, [0.3, 0.4])
    curves.add(write(curves, options.out, "worker-base", 0, [0.123456]), differing=3)
    curves.file_of(options.out, "trl", 0).write_text("", encoding="utf-8")

    data = curves.collect(options.out)

    assert {name: list(seeds) for name, seeds in data["arms"].items()} == {"worker": ["0", "1"], "worker-base": ["0"]}
    assert data["arms"]["worker"]["1"]["reward"] == [0.3, 0.4]
    assert data["arms"]["worker-base"]["0"]["reward"] == [0.1235]
    assert data["arms"]["worker-base"]["0"]["differing"] == 3
    assert (data["device"], data["prompts"], data["group"]) == ("cpu", 8, 8)


@_DRAWS
def test_the_figure_is_drawn_from_the_runs_files_alone(curves, options):
    for name, rewards in (("trl", [0.1, 0.4]), ("trl-raw", [0.1, 0.1]), ("worker", [0.1, 0.5]), ("worker-base", [0.1])):
        write(curves, options.out, name, 0, rewards)

    done = subprocess.run(
        [sys.executable, str(_SCRIPT), "--out", str(options.out), "--draw"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "trl            seeds 1, steps   2: reward 0.250 -> 0.250" in done.stdout
    assert set(json.loads((options.out / "learning_curves.json").read_text(encoding="utf-8"))["arms"]) == {
        "trl", "trl-raw", "worker", "worker-base"
    }  # fmt: skip
    assert (options.out / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere"], "--model: nowhere is no checkpoint: it has no config.json"),
        (["--jobs", "0"], "--jobs and --steps must be at least 1"),
        (["--arms", "trl-rw"], "invalid choice: 'trl-rw'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(curves, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["learning_curves.py", *arguments])

    with pytest.raises(SystemExit, match="2"):
        curves.main()

    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_of_the_trl_arms_the_dtypes_agree_except_where_that_is_the_fault(curves, options):
    options.model.mkdir()
    (options.model / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}', encoding="utf-8")

    def advised(name):
        """Whether the quirk about dtypes concerns the arm, if it is not switched off."""
        given = HookSettings.read(curves.variables(curves.ARMS[name], jobs=1, on_gpu=False)).given
        values = {"model": str(options.model), "purpose": "rollout"}
        for slot, value in given.items():
            section, _, key = slot.partition(".")
            values.setdefault(section, {})[key] = value
        plan = make_plan(GenerationConfig.parse(values), PlanOptions.gather(environ={}), environ={})
        return "float32-trainer-rollout" in {verdict.id for verdict in plan.active}

    assert {name: advised(name) for name in ("trl", "trl-raw", "trl-mixed")} == {
        "trl": False,
        "trl-raw": False,
        "trl-mixed": True,
    }
