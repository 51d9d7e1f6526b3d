"""A plan's changes as options: read back by a shell and by the parser of commands."""

from __future__ import annotations

import subprocess

import pytest

from quirks_core import Advise, Default, Patch, Require
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.serve_command import read_serve_command
from quirks_core.plan.formats import setting, vllm_args
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry
from quirks_core.source.vllm_source import INSTALLED, VllmSource

pytestmark = pytest.mark.skipif(INSTALLED.arguments.names() is None, reason="the options are read from the installed vLLM")

NASTY = 'it\'s "$(x)" `y` \\ ; &'


@pytest.fixture
def plan(model, make_quirk, loaded):
    """Plans a rollout with one quirk that asks for these adjustments."""

    def make(*adjustments, **values):
        config = GenerationConfig.parse({"model": str(model()), **values})
        registry = Registry((loaded(make_quirk(id="a", adjustments=adjustments)),))
        return make_plan(config, PlanOptions(), registry=registry)

    return make


def read_back(found):
    """What the options say, after a shell has split them and the parser has read them."""
    script = f"printf '%s\\0' {found[0]}"
    words = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")
    return read_serve_command(["vllm", "serve", "M", *words[:-1]]).arguments


CHANGES = {
    "engine.enforce_eager": True,
    "engine.enable_prefix_caching": False,
    "engine.max_num_seqs": 8,
    "engine.gpu_memory_utilization": 0.5,
    "engine.logprobs_mode": "processed_logprobs",
    "engine.generation_config": NASTY,
    "engine.compilation_config": {"mode": 0, "cudagraph_capture_sizes": [1, 2]},
    "engine.additional_config": {"note": NASTY},
    "engine.served_model_name": ["one", NASTY],
    "engine.seed": -1,
    "engine.tokenizer_mode": "-slow",
}


def test_options_that_a_shell_has_split_are_the_plans_changes(plan):
    found = vllm_args(plan(*(Require(slot, value) for slot, value in CHANGES.items())))

    assert read_back(found) == {"model": "M"} | {slot.removeprefix("engine."): value for slot, value in CHANGES.items()}
    assert found[1] == []


def test_the_heads_dtype_is_an_override_beside_those_of_the_user(plan):
    found = plan(Require("engine.head_dtype", "float32"), engine={"hf_overrides": {"rope": {"factor": 2.0}}})

    whole = {"rope": {"factor": 2.0}, "head_dtype": "float32"}
    assert read_back(vllm_args(found))["hf_overrides"] == whole


def test_what_no_option_expresses_is_a_note(plan):
    patch = Patch("json.encoder:JSONEncoder.encode_all", adds="json:dumps", reason="adds a call")
    client = Require("refit.scope", "state_dict"), Default("request.timeout_s", 60.0)
    found = plan(Require("env.NCCL_ALGO", NASTY), *client, patch, Advise("look at it"))

    words, notes = vllm_args(found)

    assert words == ""
    assert [note.partition(":")[0] for note in notes] == [
        "export NCCL_ALGO='it'\"'\"'s \"$(x)\" `y` \\ ; &', before the server starts",
        'refit.scope = "state_dict"',
        "request.timeout_s = 60.0",
        "a patches json.encoder",
        *("warning" for _ in found.warnings),
    ]
    assert "look at it" in notes[-1]
    assert "MODEL_QUIRKS=rollout" in notes[3]


def test_an_argument_without_an_option_is_a_note(plan, monkeypatch):
    known = tuple(option for option in INSTALLED.options() if option.argument != "seed")
    monkeypatch.setattr(VllmSource, "options", lambda _: known)

    words, (note,) = vllm_args(plan(Require("engine.seed", 1)))

    assert words == ""
    assert "engine.seed = 1" in note


@pytest.mark.parametrize(
    ("slot", "value", "option", "keyword"),
    [
        ("engine.load_format", "auto", "--load-format auto", "load_format='auto'"),
        ("engine.enforce_eager", False, "--no-enforce-eager", "enforce_eager=False"),
        ("refit.scope", "state_dict", "", ""),  # no argument of vLLM
    ],
)
def test_a_setting_is_written_for_the_program(slot, value, option, keyword):
    assert [setting(slot, value, as_option=as_option) for as_option in (True, False)] == [option, keyword]
