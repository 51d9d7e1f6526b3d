"""Bad input: one clear line with the nearest name, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

VERBS = ("plan", "explain")


def arguments(verb, *rest):
    """A command that needs a model."""
    return [verb, *(["v1-runtime"] if verb == "explain" else []), *rest]


def one_line(outcome):
    """The error of a command that ended with 2."""
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    return line


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "engine.load_fromat=auto"), "engine.load_fromat: unknown key; did you mean 'load_format'?"),
        (("--set", "load_format=auto"), "did you mean 'engine.load_format'?"),
        (("--set", "engine.load_format"), "write slot=value"),
        (("--set", "engine.tensor_parallel_size=zero"), "engine.tensor_parallel_size"),
        (("--set", "engine.vllm_kwargs.max_num_seq=4"), "did you mean 'max_num_seqs'?"),
        (("--disable", "v1-runtme"), "'v1-runtme' in the command line (--disable); did you mean 'v1-runtime'?"),
        (("--disable", "LOGPROB"), "'LOGPROB' in the command line (--disable)"),
        (("--disable", "load_fromat"), "did you mean 'load_format'?"),
        (("--assume", "vlm==0.9.1"), "unknown package 'vlm'; did you mean 'vllm'?"),
        (("--assume", "vllm"), "write package==version"),
        (("--assume", "vllm==new"), "'new' is not a version"),
        (("--assume", "platform==cud"), "unknown platform 'cud'; did you mean 'cuda'?"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_name_or_value_that_does_not_exist_is_one_line_with_the_nearest(quirks, model, verb, options, message):
    outcome = quirks(*arguments(verb, "--model", model(), *options))

    assert message in one_line(outcome)


def test_a_name_in_the_environment_s_switch_that_does_not_exist_is_named_with_its_layer(quirks, model, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "v1-runtme")

    outcome = quirks("plan", "--model", model())

    assert "in the environment (MODEL_QUIRKS_DISABLE); did you mean 'v1-runtime'?" in one_line(outcome)


@pytest.mark.parametrize("verb", VERBS)
def test_no_model_says_how_to_give_one(quirks, verb):
    assert "give --model" in one_line(quirks(*arguments(verb)))


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_does_not_exist_is_named(quirks, tmp_path, verb):
    outcome = quirks(*arguments(verb, "--model", tmp_path / "none"))

    assert "does not exist" in one_line(outcome)


def test_a_folder_without_config_json_is_named(quirks, tmp_path):
    assert "has no config.json" in one_line(quirks("plan", "--model", tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "is not valid JSON"), (b"[]", "must hold a JSON object"), (b"\xff\xfe", "cannot be read"), (b"", "not valid JSON")],
)
def test_a_broken_config_json_is_named(quirks, tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)

    outcome = quirks("plan", "--model", tmp_path)

    line = one_line(outcome)
    assert message in line
    assert "config.json" in line


def test_a_hub_id_that_cannot_be_read_is_one_line(program):
    command = [sys.executable, "-m", "quirks_core.cli", "plan", "--model", "some/model"]

    run = subprocess.run(command, env=program(), capture_output=True, text=True, check=False)

    assert run.returncode == 2
    assert "config.json of 'some/model' cannot be read from the hub" in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", ["engine: [", "- a", "engine: {sed: 1}", "engine:\n  seed: 1\nengine: {}\n"])
def test_a_configuration_that_cannot_be_used_is_one_line(quirks, model, tmp_path, content):
    file = tmp_path / "run.yaml"
    file.write_text(content, encoding="utf-8")

    one_line(quirks("plan", "--config", file, "--model", model()))


def test_a_configuration_that_does_not_exist_is_one_line(quirks, model, tmp_path):
    assert "none.yaml cannot be read" in one_line(quirks("plan", "--config", tmp_path / "none.yaml", "--model", model()))


@pytest.mark.parametrize("command", [["plam"], [], ["show"], ["plan", "--modle", "m"], ["plan", "--purpose", "train"]])
def test_a_command_that_does_not_exist_is_a_usage_error(quirks, command):
    outcome = quirks(*command)

    assert outcome.code == 2
    assert outcome.err.startswith("usage: quirks")


def test_with_json_an_error_is_json_on_standard_output(quirks, tmp_path):
    outcome = quirks("plan", "--model", tmp_path, "--json")

    assert outcome.code == 2
    assert outcome.json.keys() == {"error", "notes", "refusals"}
    assert "has no config.json" in outcome.json["error"]
    assert outcome.err == ""


def test_markup_in_a_name_is_shown_as_it_is(quirks, model):
    outcome = quirks("plan", "--model", model(), "--disable", "[bold]x[/]")

    assert "'[bold]x[/]'" in one_line(outcome)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_has_seen_enough_gets_no_traceback(program, options):
    command = [sys.executable, "-m", "quirks_core.cli", "list", *options]

    with subprocess.Popen(command, env=program(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        complaint = process.stderr.read()

    assert complaint == ""
    assert process.returncode == 141
