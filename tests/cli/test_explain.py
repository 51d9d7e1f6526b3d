"""``quirks explain``: the one comparison that decided."""

from __future__ import annotations

import re

import pytest
from installed import needs_vllm

GEMMA = "gemma3_text"
QUIRK = "gemma-normalizer-dummy-load"
CP = ("--set", "train.context_parallel_size=2")


@needs_vllm
@pytest.mark.parametrize(
    ("quirk", "model_type", "options"),
    [
        (QUIRK, "qwen3", ()),
        (QUIRK, GEMMA, ("--assume", "vllm==0.9.2")),
        (QUIRK, GEMMA, ("--assume", "vllm==0.9.1")),
        (QUIRK, GEMMA, ("--assume", "vllm==0.1.dev1+g123")),
        (QUIRK, GEMMA, ("--disable", "load_format")),
        ("cp-sequence-parallel", "qwen3", (*CP, "--set", "train.sequence_parallel=true")),
        ("cp-gemma3", GEMMA, CP),
        ("cpu-moe-expert-parallel", "qwen3_moe", ("--set", "engine.data_parallel_size=2", "--assume", "platform==cpu")),
        ("dp-strategy", "qwen3", ("--set", "engine.data_parallel_size=2")),
    ],
    ids=[
        "other models", "dormant", "active", "unknown", "off", "one leaf of several", "refuses", "patches", "was left open",
    ],
)  # fmt: skip
def test_explain_prints_the_state_of_a_quirk_with_its_reasons(quirks, model, messages, quirk, model_type, options):
    messages(quirks("explain", quirk, "--model", model(model_type, num_experts=8), *options).out)


RUNS = [(), ("--model",), ("--trainer", "trl", "--vllm", "0.33", "--model"), ("--", "vllm", "serve")]


@needs_vllm
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_explain_answers_five_questions(quirks, model, run):
    """With and without a run, in the words of whoever starts the engine."""
    explained = quirks("explain", "cpu-tied-head-refit", *run, *([model()] if run else []))

    answers = dict(re.findall(r"^  (what \w+ \w+|what it costs|for whom|to switch it off)  +(.*)$", explained.out, re.M))
    assert explained.code == 0
    assert list(answers) == ["what goes wrong", "what is changed", "for whom", "what it costs", "to switch it off"]
    assert answers["what goes wrong"] == "A refit leaves a tied head with its old weights on vLLM's CPU platform"
    assert answers["for whom"].endswith("; vllm >= 0.16.0")
    assert answers["what it costs"].endswith("packs the embedding and the head once more in each refit")
    assert ("nothing in this run" in answers["what it costs"]) is ("serve" in run)


def test_the_json_is_the_verdict_with_every_comparison(quirks, model):
    verdict = quirks("explain", QUIRK, "--model", model(GEMMA), "--assume", "vllm==0.9.1", "--json").json

    assert (verdict["id"], verdict["verdict"], verdict["state"]) == (QUIRK, "yes", "active")
    assert [leaf["fact"] for leaf in verdict["trace"]] == ["model.model_type", "packages.vllm"]


@pytest.mark.parametrize("name", ["acme-broken", "acme-broken/other"])
def test_a_quirk_whose_plugin_is_broken_is_not_called_unknown(quirks, model, install, messages, name):
    install("acme-broken", "raise RuntimeError('imported')\n")

    explained = quirks("explain", name, "--model", model())

    assert (explained.code, explained.out) == (3, "")
    messages(explained.err)
