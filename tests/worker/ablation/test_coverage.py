"""Which quirks cover a setting, and in which state they are in the user's plan."""

from __future__ import annotations

from typing import Any

import pytest

from quirks_core import Affected, Default, Require, model_type
from worker.lab.attribution.coverage import covering
from worker.lab.parity.records import Change

MODE = ("engine.logprobs_mode", "processed_logprobs")
TRIED = Change(setting=MODE[0], before=None, after=MODE[1])


@pytest.fixture
def covered(quirk_registry, quirk_context):
    """What covers a setting in a run with some quirks."""

    def ask(*quirks, step=TRIED, disable=(), model=None, settings=None, **run):
        registry = quirk_registry.add(*quirks)
        plan = registry.resolve(quirk_context(model, settings, **run), disable=disable)
        return [(found.id, found.state, found.because) for found in covering(step, plan, registry)]

    return ask


@pytest.mark.parametrize(
    ("fields", "run", "state", "because"),
    [
        ({"match": model_type("gemma3")}, {"model": "qwen3"}, "not_matched", "model.model_type: wanted gemma3, got qwen3"),
        ({"match": model_type("gemma3")}, {}, "unknown", "model.model_type: wanted gemma3, got unknown"),
        (
            {"affected": Affected("vllm", fixed="0.20")},
            {"vllm": "0.32.0"},
            "dormant",
            "packages.vllm: wanted < 0.20, got 0.32.0",
        ),
        ({}, {"settings": {MODE[0]: "raw_logprobs"}}, "active", "the user typed 'raw_logprobs', which wins over a default"),
    ],
)
def test_a_quirk_that_does_not_decide_a_setting_says_why(fields, run, state, because, covered, declare):
    assert covered(declare("a", Default(*MODE), **fields), **run) == [("a", state, because)]


def test_a_default_that_was_outranked_says_so(covered, declare):
    strong = declare("b", Require("engine.logprobs_mode", "raw_logprobs"))

    assert covered(declare("a", Default(*MODE)), strong) == [("a", "active", "a requirement on the same slot wins")]


def test_only_a_quirk_that_gives_the_tried_value_covers_it(covered, declare):
    def long(context: Any) -> str:
        return "processed_logprobs" if context.model.model_type == "qwen3" else "raw_logprobs"

    def broken(_: Any) -> str:
        raise KeyError("none of mine")

    found = covered(
        declare("a", Default("engine.logprobs_mode", long)),
        declare("b", Default("engine.logprobs_mode", broken), match=model_type("gemma3")),
        declare("c", Default("engine.logprobs_mode", "raw_logprobs"), match=model_type("gemma3")),
        model="qwen3",
    )

    assert [name for name, *_ in found] == ["a"]


def test_a_combination_s_parts_are_covered_soonest_help_first(covered, declare):
    quirks = (
        declare("a", Default("engine.enforce_eager", True), match=model_type("gemma3")),
        declare("b", Default("engine.enforce_eager", True)),
        declare("c", Default(*MODE)),
    )
    names = "engine.logprobs_mode + engine.enforce_eager + quirk c"
    step = Change(setting=names, before=[None] * 3, after=["processed_logprobs", True, "active"])

    found = covered(*quirks, step=step, model="qwen3", disable=["c"])

    assert [(name, state) for name, state, *_ in found] == [("c", "disabled"), ("b", "active"), ("a", "not_matched")]
