"""The script of the learning curves: what it rewards, plans, resumes and draws. The runs need minutes and are no test."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
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


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    return load_script(_SCRIPT.with_name("learning_runs.py"))


@pytest.fixture
def options(tmp_path):
    """Options of the command line, for two steps."""
    out = tmp_path / "out"
    out.mkdir()
    values = {"prompts": 8, "group": 8, "steps": 2, "jobs": 2, "minutes": 1, "tiny": False}
    return argparse.Namespace(experiment="corrections", out=out, model=tmp_path / "model", **values)


def write(curves, folder, name, seed, rewards, *, difference=0.01):
    """Writes the file of a run."""
    file = curves.file_of(folder, name, seed)
    curves.add(file, arm=name, seed=seed, prompts=8, group=8, device="cpu", versions={})
    for step, value in enumerate(rewards, 1):
        curves.add(file, step=step, reward=value, difference=difference, ratio=1.0, grad_norm=0.5)
    return file


@pytest.mark.parametrize(
    ("text", "task", "expected"),
    [
        ("paris.", "answers", 1.0),
        ("The capital of France is Paris.", "answers", 1 / 6),
        ("Paris Paris Paris", "answers", 1 / 3),
        ("Parisian", "answers", 0.0),
        ("", "answers", 0.0),
        ("one by one by now", "vowels", 0.4),
    ],
)
def test_the_reward_is_the_share_of_words_that_are_right(runs, text, task, expected):
    assert runs.reward(text, "Paris", task) == expected


@pytest.mark.parametrize(
    ("name", "logprobs", "keeps_cache", "is_salted", "dtype"),
    [
        ("v1", None, True, False, None),
        ("logprobs", "processed_logprobs", True, False, None),
        ("head", "processed_logprobs", False, True, None),
        ("float16", "processed_logprobs", False, True, "float16"),
    ],
)
def test_an_arm_corrects_one_more_default(curves, runs, options, name, logprobs, keeps_cache, is_salted, dtype):
    options.model.mkdir()
    (options.model / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    arm = curves.ARMS["corrections"][name]
    config = GenerationConfig.parse(runs.configuration(arm, options, on_gpu=False))

    plan = make_plan(config, PlanOptions.gather(call=SwitchNames(arm.disable), environ={}), environ={})

    assert plan.value("engine.logprobs_mode") == logprobs
    assert plan.value("refit.clear_cache") is not keeps_cache
    assert is_salted is any(patch.quirk.id == "prefix-cache-after-update" for patch in plan.patches)
    assert (plan.value("engine.dtype"), plan.value("engine.head_dtype") == "float32") == (dtype, arm.float32_head)


@pytest.mark.parametrize("gpus", [0, 4])
def test_the_hook_knows_every_value_that_an_arm_gives_it(curves, gpus):
    known = {loaded.quirk.id for loaded in Registry.load().loaded}
    for arm in itertools.chain(*(arms.values() for arms in curves.ARMS.values())):
        settings = HookSettings.read(curves.variables(arm, jobs=8, number=5, gpus=gpus))

        assert (settings is None) == (arm.trl is None)
        assert settings is None or settings.given["engine.enforce_eager"] is True
        assert set(arm.disable) <= known


def test_only_an_incomplete_run_is_repeated(curves, options, monkeypatch):
    complete = write(curves, options.out, "v1", 0, [0.1, 0.2])
    cut = write(curves, options.out, "head", 1, [0.1, 0.2])
    cut.write_text(cut.read_text(encoding="utf-8")[:-4], encoding="utf-8")
    before = complete.read_bytes()
    made = []
    monkeypatch.setattr(curves, "command", lambda _, *run: made.append(run) or [sys.executable, "-c", ""])

    missing = curves.run_all(options, [("v1", 0), ("head", 1)], gpus=0)

    assert made == [("head", 1)]
    assert missing == []
    assert complete.read_bytes() == before


def test_a_run_that_fails_is_named_after_a_second_attempt(curves, options, monkeypatch):
    made = []
    monkeypatch.setattr(curves, "command", lambda _, *run: made.append(run) or [sys.executable, "-c", "raise SystemExit(3)"])

    missing = curves.run_all(options, [("v1", 0)], gpus=0)

    assert made == [("v1", 0)] * 2
    assert missing == [f"v1-0: {options.out / 'v1-0.log'} says why it ended"]


def test_a_band_summarises_the_smoothed_runs_that_are_complete(curves):
    assert curves.band([[0.0, 1.0], [1.0, 1.0], [9.0]]) == [(0.0, 0.5, 1.0), (0.5, 0.75, 1.0)]
    assert curves.band([[float(value) for value in range(10)]])[-1] == (7.0, 7.0, 7.0)  # of 5, 6, 7, 8 and 9


@_DRAWS
@pytest.mark.parametrize(
    ("experiment", "names"), [("corrections", ("v1", "head")), ("precision", ("answers-float16", "lora-mixed"))]
)
def test_the_figure_is_drawn_from_the_runs_files_alone(curves, options, monkeypatch, capsys, experiment, names):
    for name, seed in ((names[0], 0), (names[0], 1), (names[1], 0)):
        write(curves, options.out, name, seed, [0.1, 0.412345])
    curves.file_of(options.out, names[1], 1).write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["learning_curves.py", experiment, "--out", str(options.out), "--draw"])
    monkeypatch.setattr(curves.signal, "signal", lambda *_: None)  # it is not this process's to change

    assert curves.main() == 0

    assert f"{names[0]:18} 2 seeds, 2 steps: reward 0.256 (0.256 to 0.256), " in capsys.readouterr().out
    data = json.loads((options.out / f"{experiment}.json").read_text(encoding="utf-8"))
    assert {name: list(seeds) for name, seeds in data["arms"].items()} == {names[0]: ["0", "1"], names[1]: ["0"]}
    assert data["arms"][names[1]]["0"]["reward"] == [0.1, 0.412]
    assert (data["device"], data["prompts"], data["group"]) == ("cpu", 8, 8)
    assert (options.out / f"{experiment}.png").read_bytes().startswith(b"\x89PNG")
