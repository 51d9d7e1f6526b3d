"""Faults of weight updates in TRL's own GRPO trainer, each named within two updates; and healthy runs without a verdict."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("faulty_grpo.py")
#: Eager engines start in half the time.
VARIABLES = {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_SET": "train.dtype=float32", "TORCHDYNAMO_DISABLE": "1"}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("trl", "peft")),
        reason="needs the extra 'integrations' (TRL or PEFT is not installed)",
    ),
]


@pytest.fixture
def run(train):
    """Trains; returns the lines of the callback's file, TRL's own, and verdicts and differences in the output."""

    def trained(fault, *options):
        ended = train("-".join((fault, *options)), fault, *options, script=SCRIPT, **VARIABLES)
        assert ended.code == 0, ended.text[-4000:]
        rows = [json.loads(line) for line in ended.log.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
        said = [line.partition("model-quirks: ")[2] for line in ended.text.splitlines()]
        found = [line for line in said if line.startswith(("arrival: ", "contract: "))]
        return rows, ended.steps, [line for line in found if "trainer and engine agree on" not in line]

    return trained


@pytest.mark.parametrize(
    ("options", "differences"),
    [
        (("--iterations=2",), []),
        (("--lora", "--sampled-at=0.5"), ["contract: temperature: the trainer has 0.7, the engine 0.5"]),
    ],
    ids=["iterations", "lora at another temperature"],
)
def test_a_healthy_run_is_logged_without_a_verdict(run, options, differences):
    """Every update of a healthy run is logged without a verdict; a rollout at another temperature is a difference."""
    rows, steps, said = run("none", *options)

    assert said == differences
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [(row["arrived"], row["verdict"]) for row in rows] == [(1, "")] * 4
    assert [step["weights/arrived"] for step in steps] == [1] * 4
    assert all(step["weights/update_norm"] > 0 for step in steps[1:])
    changes = [step["weights/changed_share"] > 0 for step in steps[1:]]
    assert changes == ([False, True, False] if "--iterations=2" in options else [True] * 3)  # one rollout for two steps


@pytest.mark.parametrize(
    ("fault", "options", "step", "words"),
    [
        ("unmerged", ("--lora",), 1, "a base whose adapter is not merged, or a stale copy"),
        ("stale", (), 3, "a base whose adapter is not merged, or a stale copy"),
        ("unsent", (), 2, "no update came since the comparison before"),
    ],
)
def test_a_policy_that_does_not_arrive_is_named_at_once(run, fault, options, step, words):
    rows, steps, said = run(fault, *options)

    assert [bool(row["verdict"]) for row in rows] == [number >= step for number in range(1, 5)]
    assert rows[step - 1]["arrived"] < 1
    assert steps[step - 1]["weights/arrived"] < 1
    (line,) = said
    assert line.startswith(f"arrival: step {step}: ")
    assert words in line
    if options:
        targets = {f"layers.{layer}.{name}.weight" for layer in range(2) for name in ("mlp.down_proj", "self_attn.qkv_proj")}
        assert targets >= set(rows[step - 1]["missing"])


def test_steps_that_the_scaler_skips_are_no_fault(train):
    ended = train("skipped", "none", "--fp16", script=SCRIPT, **VARIABLES | {"MODEL_QUIRKS_LEDGER": "stop"})

    assert ended.code == 0, ended.text[-4000:]
    (account,) = json.loads(ended.receipt.read_text(encoding="utf-8"))["accounts"]
    assert [line["changed"] > 0 for line in account["lines"][2:]] == [False, False, True]
    (note,) = account["verdicts"]
    assert (note["kind"], note["is_grave"], account["problems"]) == ("unchanged", False, [])
    assert "or whose step was skipped by the scaler" in note["text"]
    said = [line.partition("arrival: ")[2] for line in ended.text.splitlines() if "model-quirks: arrival: " in line]
    assert said == ["step 1 was skipped by the scaler: the weights stay as they are"]
    rows = [json.loads(line) for line in ended.log.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["arrived"], row["verdict"]) for row in rows] == [(1, "")] * 4
    assert [row["skipped"] for row in rows] == [True, True, False, False]


def test_an_engine_without_a_ledger_ends_the_run(train):
    ended = train("off", "none", script=SCRIPT, **VARIABLES | {"MODEL_QUIRKS_LEDGER": "off"})

    assert ended.code != 0
    assert "the engine keeps no ledger: start it with MODEL_QUIRKS=rollout" in ended.text


def test_an_engine_in_another_dtype_ends_the_run(train):
    """Before the first rollout, if differences are to end it."""
    bfloat16 = VARIABLES | {"MODEL_QUIRKS_DISABLE": "float32-checkpoint-downcast"}
    stopped = train("stopped", "none", "--lora", "--on-difference", "stop", script=SCRIPT, **bfloat16)

    assert stopped.code != 0
    words = (
        "trainer and engine differ before the first rollout: dtype: the trainer has float32, the engine bfloat16; head_dtype:"
    )
    assert words in stopped.text
    assert not stopped.log.exists()
