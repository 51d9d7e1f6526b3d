"""``quirks explain``: the one comparison that decided."""

from __future__ import annotations

import pytest

GEMMA = "gemma3_text"
QUIRK = "gemma-normalizer-dummy-load"
CP = ("--set", "train.context_parallel_size=2")


@pytest.mark.parametrize(
    ("quirk", "model_type", "options", "lines"),
    [
        (
            QUIRK, "qwen3", (),
            [
                f"{QUIRK} does not concern this run",
                "  model.model_type: wanted gemma or gemma2 or gemma3 or gemma3_text, got qwen3",
            ],
        ),
        (
            QUIRK, GEMMA, ("--assume", "vllm==0.9.2"),
            [
                f"{QUIRK} is dormant: the installed version is not affected",
                "  packages.vllm: wanted < 0.9.2, got 0.9.2",
            ],
        ),
        (
            "cp-sequence-parallel", "qwen3", (*CP, "--set", "train.sequence_parallel=true"),
            ["cp-sequence-parallel does not concern this run", "  train.tensor_parallel_size: wanted > 1, got 1"],
        ),
        (
            QUIRK, GEMMA, ("--assume", "vllm==0.9.1"),
            [
                f"{QUIRK} applies",
                "  every condition holds",
                "  engine.load_format = auto (applied: changed from the configuration's default 'dummy')",
            ],
        ),
        (
            QUIRK, GEMMA, ("--disable", "load_format"),
            [f"{QUIRK} is switched off", "  switched off by 'load_format' in the command line (--disable)"],
        ),
    ],
    ids=["other models", "dormant", "one leaf of several", "active", "off"],
)  # fmt: skip
def test_the_state_and_what_decided_about_it_are_all_that_is_printed(quirks, model, quirk, model_type, options, lines):
    explained = quirks("explain", quirk, "--model", model(model_type), *options)

    assert (explained.code, explained.out.splitlines()) == (0, lines)


@pytest.mark.parametrize(
    ("quirk", "model_type", "options", "words"),
    [
        (
            "cp-gemma3",
            GEMMA,
            CP,
            ["Gemma-3 needs its mask", "remedy: set train.context_parallel_size: 1", "--disable cp-gemma3"],
        ),
        ("cpu-moe-expert-parallel", "qwen3_moe", ("--set", "engine.data_parallel_size=2"), ["all_gatherv", "reduce_scatterv"]),
        ("unread-environment", "qwen3", ("--set", "env.VLLM_OLD_NAME=1"), ["does not read VLLM_OLD_NAME"]),
        (QUIRK, GEMMA, ("--assume", "vllm==0.1.dev1+g123"), ["cannot be decided", "got 0.1.dev1+g123"]),
    ],
    ids=["refuses", "patches", "warns", "unknown"],
)
def test_whatever_a_quirk_does_to_the_run_is_printed(quirks, model, quirk, model_type, options, words):
    explained = quirks("explain", quirk, "--model", model(model_type, num_experts=8), *options)

    assert [text for text in words if text not in explained.out] == []


def test_the_json_is_the_verdict_with_every_comparison(quirks, model):
    verdict = quirks("explain", QUIRK, "--model", model(GEMMA), "--assume", "vllm==0.9.1", "--json").json

    assert (verdict["id"], verdict["verdict"], verdict["state"]) == (QUIRK, "yes", "active")
    assert [leaf["fact"] for leaf in verdict["trace"]] == ["model.model_type", "packages.vllm"]


def test_an_unknown_id_is_an_error_with_the_nearest_one(quirks, model):
    explained = quirks("explain", "v1-runtme", "--model", model())

    assert explained.code == 2
    assert "did you mean 'v1-runtime'" in explained.err


NEGATED = """
from quirks_core import Advise, Fact, Quirk, Severity, model_type, report, setting
QUIRK = Quirk(
    id="acme-not", title="t", flag="runtime", severity=Severity.NOISE, references=report("https://example.org"),
    adjustments=Advise("look out"),
    match=~(model_type("gemma3_text") & setting("train.context_parallel_size").above(1) & ~setting("engine.seed").one_of(0)),
)
"""


def test_a_negation_says_what_it_wanted_and_got_the_contrary_of(quirks, model, install):
    install("acme-not", NEGATED)

    explained = quirks("explain", "acme-not", "--model", model(GEMMA), *CP, "--set", "engine.seed=1")
    trace = quirks("explain", "acme-not", "--model", model(GEMMA), *CP, "--set", "engine.seed=0", "--json").json["trace"]

    assert explained.out.splitlines()[1] == "  model.model_type: wanted other than gemma3_text, got gemma3_text"
    assert [(leaf["fact"], leaf["wanted"], leaf["got"], leaf["answer"]) for leaf in trace] == [
        ("model.model_type", "other than gemma3_text", GEMMA, "no"),
        ("train.context_parallel_size", "<= 1", 2, "no"),
        ("engine.seed", "0", 0, "yes"),
    ]


@pytest.mark.parametrize("name", ["acme-broken", "acme-broken/other"])
def test_a_quirk_whose_plugin_is_broken_is_not_called_unknown(quirks, model, install, name):
    install("acme-broken", "raise RuntimeError('imported')\n")

    explained = quirks("explain", name, "--model", model())

    assert (explained.code, explained.out) == (3, "")
    assert f"quirk '{name}' is not loaded, its plugin 'acme-broken' of acme-broken 1.2 " in explained.err
    assert "is broken: RuntimeError: imported" in explained.err


def test_a_slot_without_a_value_was_left_open_and_has_no_default_none(quirks, model):
    explained = quirks("explain", "dp-strategy", "--model", model(), "--set", "engine.data_parallel_size=2")

    assert explained.out.splitlines()[2] == "  parallel.dp_strategy = independent (applied: the configuration left it open)"
