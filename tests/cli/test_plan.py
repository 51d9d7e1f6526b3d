"""``quirks plan``: what applies to a run and why."""

from __future__ import annotations

import subprocess
import sys

import pytest

GEMMA = "gemma3_text"
OLD = ("--assume", "vllm==0.9.1")
NEW = ("--assume", "vllm==0.32.0")
DUMMY = ("--set", "engine.load_format=dummy")


def find(items, **wanted):
    """The one item that has these values."""
    (found,) = [item for item in items if all(item[key] == value for key, value in wanted.items())]
    return found


def test_plan_needs_nothing_but_a_config_json(quirks, model):
    planned = quirks("plan", "--model", model())

    assert planned.code == 0
    assert "engine.logprobs_mode = processed_logprobs" in planned.out
    assert planned.err == ""


def test_an_affected_engine_requires_auto_and_refuses_the_explicit_dummy(quirks, model):
    planned = quirks("plan", "--model", model(GEMMA), *DUMMY, *OLD, "--json")

    adjustment = find(planned.json["adjustments"], slot="engine.load_format")
    assert planned.code == 1
    assert (adjustment["value"], adjustment["strength"], adjustment["status"]) == ("auto", "require", "refused")
    assert find(planned.json["refusals"], slot="engine.load_format")["switch"].startswith(
        "--disable gemma-normalizer-dummy-load"
    )


def test_the_same_on_a_fixed_engine_is_dormant(quirks, model):
    planned = quirks("plan", "--model", model(GEMMA), *DUMMY, *NEW, "--json")

    verdict = find(planned.json["verdicts"], id="gemma-normalizer-dummy-load")
    assert planned.code == 0
    assert (verdict["verdict"], verdict["state"]) == ("no", "dormant")
    assert "got 0.32.0" in verdict["because"]


def test_the_json_has_the_keys_that_are_promised(quirks, model):
    plan = quirks("plan", "--model", model(GEMMA), *OLD, "--json").json

    adjustment = find(plan["adjustments"], slot="engine.load_format")
    verdict = find(plan["verdicts"], id="gemma-normalizer-dummy-load")
    assert plan.keys() == {"digest", "context", "changes", "adjustments", "verdicts", "refusals", "warnings", "patches"}
    assert {"slot", "value", "strength", "flag", "status", "quirks"} <= adjustment.keys()
    assert {"id", "distribution", "version", "location", "reason"} <= adjustment["quirks"][0].keys()
    assert {"id", "verdict", "trace"} <= verdict.keys()
    assert {"fact", "wanted", "got"} <= verdict["trace"][0].keys()
    assert len(plan["digest"]) == 64


def test_the_json_is_sorted_and_the_same_in_every_process(model, program):
    command = [sys.executable, "-m", "quirks_core.cli", "plan", "--model", str(model(GEMMA)), *DUMMY, *OLD, "--json"]
    command += ["--set", "refit.scope=state_dict", "--set", "engine.seed=1", "--assume", "torch==2.8.0"]

    first, second = (
        subprocess.run(command, env=program(PYTHONHASHSEED=seed), capture_output=True, text=True, check=False).stdout
        for seed in ("1", "2")
    )

    assert first
    assert first == second
    assert first.index('"adjustments"') < first.index('"context"') < first.index('"digest"')


def test_the_table_shows_what_applies_what_sleeps_and_what_is_off(quirks, model):
    planned = quirks("plan", "--model", model(GEMMA), *NEW, "--disable", "logprobs")

    rows = {line.split("│")[1].strip(): line for line in planned.out.splitlines() if line.startswith("│")}
    assert "applied" in rows["async-rollout-timeout"]
    assert "dormant" in rows["gemma-normalizer-dummy-load"]
    assert "packages.vllm: wanted < 0.9.2, got 0.32.0" in planned.out
    assert "disabled" in rows["rollout-logprobs-processed"]
    assert "other quirks do not concern this run" in planned.out


def test_a_refused_plan_shows_every_reason_with_remedy_and_switch(quirks, model):
    train = ("--set", "train.context_parallel_size=2", "--set", "train.sequence_packing=true")

    planned = quirks("plan", "--model", model(GEMMA), *DUMMY, *OLD, *train)

    assert planned.code == 1
    for quirk in ("gemma-normalizer-dummy-load", "cp-gemma3", "cp-sequence-packing"):
        assert f"refused: {quirk}" in planned.out
        assert f"override: --disable {quirk}" in planned.out
    assert planned.out.count("remedy:") == 3


def test_a_switch_turns_a_refusal_off(quirks, model):
    planned = quirks("plan", "--model", model(GEMMA), *DUMMY, *OLD, "--disable", "gemma-normalizer-dummy-load")

    assert planned.code == 0


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("flag", "the command line (--disable)"),
        ("environment", "the environment (MODEL_QUIRKS_DISABLE)"),
        ("file", "the configuration (quirks.disable)"),
    ],
)
def test_the_plan_names_the_layer_that_switched_a_quirk_off(quirks, model, monkeypatch, tmp_path, layer, words):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {model()}\nquirks: {{disable: [logprobs]}}\n", encoding="utf-8")
    if layer != "file":
        monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "logprobs")
    flags = ("--disable", "logprobs") if layer == "flag" else ()

    planned = quirks("plan", "--config", file, *flags, "--json")

    assert (
        find(planned.json["verdicts"], id="rollout-logprobs-processed")["because"] == f"switched off by 'logprobs' in {words}"
    )


@pytest.mark.parametrize(("purpose", "load_format"), [("rollout", "dummy"), ("eval", "auto"), ("serve", "auto")])
def test_the_purpose_can_be_given_as_an_option(quirks, model, purpose, load_format):
    context = quirks("plan", "--model", model(), "--purpose", purpose, "--json").json["context"]

    assert context["purpose"] == purpose
    assert context["settings"]["engine.load_format"] == load_format


def test_options_override_the_configuration_file(quirks, model, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("model: some/model\nengine: {load_format: dummy}\n", encoding="utf-8")

    context = quirks("plan", "--config", file, "--model", model(), "--set", "engine.load_format=auto", "--json").json["context"]

    assert context["model"]["name"] == "qwen3"
    assert context["settings"]["engine.load_format"] == "auto"


def test_every_assumption_is_marked_in_the_context(quirks, model):
    assumptions = ("vllm==0.10.2", "torch==2.8.0", "transformers==4.56.0", "ray==2.49.0", "platform==cuda")
    options = [option for text in assumptions for option in ("--assume", text)]

    context = quirks("plan", "--model", model(), *options, "--json").json["context"]

    assert context["assumed"] == ["ray", "torch", "transformers", "vllm"]
    assert context["packages"]["vllm"] == "0.10.2"
    assert context["platform"] == "cuda"


def test_an_assumed_engine_s_arguments_are_not_held_against_the_installed_one(quirks, model):
    setting = ("--set", "engine.vllm_kwargs.swap_spaces=4")

    assert quirks("plan", "--model", model(), *setting, *OLD).code == 0
    assert quirks("plan", "--model", model(), *setting).code == 2


def test_a_broken_plugin_is_a_warning_in_every_plan(quirks, model, install):
    install("acme-broken", "raise RuntimeError('imported')\n")

    planned = quirks("plan", "--model", model(), "--json")

    assert planned.code == 0
    assert any("acme-broken" in warning for warning in planned.json["warnings"])


def test_planning_imports_no_engine_and_no_trainer(model, program):
    code = (
        "import sys; from quirks_core.cli import main;"
        f"main(['plan', '--model', {str(model(GEMMA))!r}, '--json']);"
        "sys.exit(', '.join({'torch', 'vllm', 'ray', 'transformers'} & sys.modules.keys()) or None)"
    )

    run = subprocess.run([sys.executable, "-c", code], env=program(), capture_output=True, text=True, check=False)

    assert (run.returncode, run.stderr) == (0, "")
