"""``quirks generate`` refuses what cannot work before any engine starts."""

from __future__ import annotations

import multiprocessing
import sys

import pytest


@pytest.fixture(autouse=True)
def no_engine():
    """No command of this file may reach the engine."""
    before, children = "vllm" in sys.modules, multiprocessing.active_children()
    yield
    assert ("vllm" in sys.modules) is before
    assert set(multiprocessing.active_children()) <= set(children)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Hello", "--assume", "vllm==0.9.1"], "error: --assume makes plans for versions that are not installed"),
        (["Hello"], "has no weights"),  # weights are loaded unless the user says otherwise
        (["Hello", "--set", "engine.load_format=auto", "--purpose", "serve"], "has no weights"),
        (["Hello"], "--set engine.load_format=dummy"),
        ([], "PROMPT"),
        (["Hello", "--set", "engine.vllm_kwargs.max_num_seq=4"], "did you mean 'max_num_seqs'?"),
    ],
)
def test_what_cannot_be_run_is_one_clear_usage_error(quirks, model, arguments, message):
    outcome = quirks("generate", "--model", model(), *arguments)

    assert outcome.code == 2
    assert message in outcome.err.splitlines()[-1]


def test_everything_that_refuses_the_run_is_in_one_error_and_in_the_json(quirks, model):
    folder = model("gemma3", vision_config={"depth": 2})
    train = ("--set", "train.context_parallel_size=2", "--set", "train.sequence_packing=true")

    shown, listed = (quirks("generate", "--model", folder, *train, *more, "Hello") for more in ((), ("--json",)))

    ids = {"cp-gemma3", "cp-sequence-packing", "cp-vlm"}
    assert (shown.code, listed.code) == (1, 1)
    assert "refused for 3 reasons" in shown.err
    assert shown.err.count("remedy:") == 3
    assert all(f"override: --disable {quirk}" in shown.err for quirk in ids)
    assert {refusal["quirks"][0]["id"] for refusal in listed.json["refusals"]} == ids
    assert all({"reason", "remedy", "switch"} <= refusal.keys() for refusal in listed.json["refusals"])
