"""``quirks explain``: the one comparison that decided."""

from __future__ import annotations

import pytest

GEMMA = "gemma3_text"
QUIRK = "gemma-normalizer-dummy-load"


def test_a_quirk_of_other_models_prints_the_one_leaf_that_failed(quirks, model):
    explained = quirks("explain", QUIRK, "--model", model("qwen3"))

    assert explained.code == 0
    assert explained.out.splitlines() == [
        f"{QUIRK} does not concern this run",
        "  model.model_type: wanted gemma or gemma2 or gemma3 or gemma3_text, got qwen3",
    ]


def test_a_dormant_quirk_prints_the_version_that_put_it_to_sleep(quirks, model):
    explained = quirks("explain", QUIRK, "--model", model(GEMMA), "--assume", "vllm==0.9.2")

    assert explained.out.splitlines() == [
        f"{QUIRK} is dormant: it would concern this run, but the installed version is not affected",
        "  packages.vllm: wanted < 0.9.2, got 0.9.2",
    ]


def test_one_failing_leaf_of_several_is_named_alone(quirks, model):
    train = ("--set", "train.context_parallel_size=2", "--set", "train.sequence_parallel=true")

    explained = quirks("explain", "cp-sequence-parallel", "--model", model(), *train)

    assert explained.out.splitlines()[1:] == ["  train.tensor_parallel_size: wanted > 1, got 1"]


def test_an_active_quirk_prints_what_it_does(quirks, model):
    explained = quirks("explain", QUIRK, "--model", model(GEMMA), "--assume", "vllm==0.9.1")

    assert explained.out.splitlines() == [
        f"{QUIRK} applies",
        "  every condition holds",
        "  engine.load_format = auto (applied: changed from the configuration's default 'dummy')",
    ]


def test_a_quirk_that_refuses_the_run_prints_reason_remedy_and_switch(quirks, model):
    explained = quirks("explain", "cp-gemma3", "--model", model(GEMMA), "--set", "train.context_parallel_size=2")

    assert "Gemma-3 needs its mask" in explained.out
    assert "remedy: set train.context_parallel_size: 1" in explained.out
    assert "override: --disable cp-gemma3" in explained.out


def test_a_quirk_that_patches_prints_every_target(quirks, model):
    moe = model("qwen3_moe", num_experts=8)

    explained = quirks("explain", "cpu-moe-expert-parallel", "--model", moe, "--set", "engine.data_parallel_size=2")

    assert "CpuCommunicator.all_gatherv" in explained.out
    assert "CpuCommunicator.reduce_scatterv" in explained.out


def test_a_quirk_that_warns_prints_the_warning(quirks, model):
    explained = quirks("explain", "unread-environment", "--model", model(), "--set", "env.VLLM_OLD_NAME=1")

    assert "does not read VLLM_OLD_NAME" in explained.out


def test_a_quirk_that_cannot_be_decided_prints_the_missing_fact(quirks, model):
    explained = quirks("explain", QUIRK, "--model", model(GEMMA), "--assume", "vllm==0.1.dev1+g123")

    assert "cannot be decided" in explained.out
    assert "got 0.1.dev1+g123" in explained.out


def test_a_quirk_that_is_off_prints_the_switch(quirks, model):
    explained = quirks("explain", QUIRK, "--model", model(GEMMA), "--disable", "load_format")

    assert explained.out.splitlines() == [
        f"{QUIRK} is switched off",
        "  switched off by 'load_format' in the command line (--disable)",
    ]


def test_the_json_is_the_verdict_with_every_comparison(quirks, model):
    verdict = quirks("explain", QUIRK, "--model", model(GEMMA), "--assume", "vllm==0.9.1", "--json").json

    assert (verdict["id"], verdict["verdict"], verdict["state"]) == (QUIRK, "yes", "active")
    assert [leaf["fact"] for leaf in verdict["trace"]] == ["model.model_type", "packages.vllm"]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_unknown_id_is_an_error_with_the_nearest_one(quirks, model, as_json):
    explained = quirks("explain", "v1-runtme", "--model", model(), *(["--json"] if as_json else []))

    assert explained.code == 2
    assert "did you mean 'v1-runtime'" in (explained.json["error"] if as_json else explained.err)
