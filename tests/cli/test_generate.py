"""``quirks generate`` refuses what cannot work before any engine starts."""

from __future__ import annotations

import multiprocessing
import sys

import pytest


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The command sets these for its own process where they are open; here they must not outlive the test."""
    for variable in ("VLLM_LOGGING_LEVEL", "PYTHONWARNINGS", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(variable, "error")


@pytest.fixture(autouse=True)
def no_engine():
    """No command of this file may reach the engine."""
    before = "vllm" in sys.modules
    yield
    assert ("vllm" in sys.modules) is before
    assert multiprocessing.active_children() == []


def test_an_assumed_version_cannot_be_run(quirks, model):
    outcome = quirks("generate", "--model", model(), "--assume", "vllm==0.9.1", "Hello")

    assert outcome.code == 2
    assert outcome.err.startswith("error: --assume makes plans for versions that are not installed")


def test_a_model_without_weights_is_one_clear_line(quirks, model):
    outcome = quirks("generate", "--model", model(), "Hello")

    (line,) = outcome.err.splitlines()
    assert outcome.code == 2
    assert "has no weights" in line
    assert "--set engine.load_format=dummy" in line


def test_a_prompt_is_needed(quirks, model):
    outcome = quirks("generate", "--model", model())

    assert outcome.code == 2
    assert "PROMPT" in outcome.err


def test_everything_that_refuses_the_run_is_in_one_error(quirks, model):
    train = ("--set", "train.context_parallel_size=2", "--set", "train.sequence_packing=true")

    outcome = quirks("generate", "--model", model("gemma3", vision_config={"depth": 2}), *train, "Hello")

    assert outcome.code == 1
    assert "refused for 3 reasons" in outcome.err
    for quirk in ("cp-gemma3", "cp-sequence-packing", "cp-vlm"):
        assert f"- {quirk} (model-quirks" in outcome.err
        assert f"override: --disable {quirk}" in outcome.err
    assert outcome.err.count("remedy:") == 3


def test_refusals_are_json_with_json(quirks, model):
    train = ("--set", "train.context_parallel_size=2")

    outcome = quirks("generate", "--model", model("gemma3"), *train, "--json", "Hello")

    (refusal,) = outcome.json["refusals"]
    assert outcome.code == 1
    assert refusal["quirks"][0]["id"] == "cp-gemma3"
    assert {"reason", "remedy", "switch"} <= refusal.keys()


def test_weights_are_loaded_unless_the_user_says_otherwise(quirks, model, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {model()}\npurpose: serve\n", encoding="utf-8")

    assert "has no weights" in quirks("generate", "--config", file, "Hello").err
    assert "has no weights" in quirks("generate", "--config", file, "--set", "engine.load_format=auto", "Hello").err


def test_an_unknown_engine_argument_is_found_before_the_engine(quirks, model):
    outcome = quirks("generate", "--model", model(), "--set", "engine.vllm_kwargs.max_num_seq=4", "Hello")

    assert outcome.code == 2
    assert "did you mean 'max_num_seqs'?" in outcome.err
