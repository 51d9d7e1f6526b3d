"""Bad input: one clear line with the nearest name, exit code 2, no traceback."""

from __future__ import annotations

import pytest

#: Commands that describe a run, and read it in different modules.
OF_A_RUN = pytest.mark.parametrize("command", [("plan",), ("explain", "v1-runtime")], ids=lambda command: command[0])


@pytest.fixture(autouse=True)
def wide(own_shell, monkeypatch):  # noqa: ARG001 - before this, which it would undo
    """No message wraps, whatever it quotes."""
    monkeypatch.setenv("COLUMNS", "2000")


def one_line(outcome):
    """The error of a command that ended with 2."""
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    return line


@OF_A_RUN
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "engine.load_fromat=auto"), "did you mean 'load_format'?"),
        (("--set", "load_format=auto"), "did you mean 'engine.load_format'?"),
        (("--set", "engine.load_format"), "write slot=value"),
        (("--set", "engine.tensor_parallel_size=zero"), "engine.tensor_parallel_size"),
        (("--set", "engine.max_num_seq=4"), "did you mean 'max_num_seqs'?"),
        (("--set", "engine.vllm_kwargs.max_num_seq=4"), "did you mean 'max_num_seqs'?"),
        (("--set", "engine.block_size=big"), "engine.block_size takes a whole number, not 'big'"),
        (("--disable", "v1-runtme"), "'v1-runtme' in the command line (--disable); did you mean 'v1-runtime'?"),
        (("--force", "distribution:model-quirk"), "(--force); did you mean 'distribution:model-quirks'?"),
        (("--disable", "LOGPROB"), "'LOGPROB' in the command line (--disable)"),
        (("--disable", "[bold]x[/]"), "'[bold]x[/]'"),
        (("--disable", ""), "an empty name in the command line (--disable); name a quirk"),
        (("--force", " "), "an empty name in the command line (--force)"),
        (("--locked", ""), "cannot be read"),
        (("--set", "refit.transport=ipc_zqm"), "not 'ipc_zqm'; did you mean 'ipc_zmq'?"),
        (("--set", "engine.dtype=flaot32"), "not 'flaot32'; did you mean 'float32'?"),
        (("--set", f"engine.hf_overrides={'[' * 60}{']' * 60}"), "is nested deeper than 50 levels"),
        (("--set", f"engine.hf_overrides.{'a.' * 600}=1"), "is nested deeper than 50 levels"),
        (("--set", f"engine.hf_overrides={'[' * 50_000}"), "is nested deeper than 50 levels"),
        (("--set", f"engine.seed={'9' * 5_000}"), "99… is not valid YAML"),
        (("--set", "engine.seed=2026-13-45"), "--set 'engine.seed=2026-13-45': '2026-13-45' is not valid YAML"),
        (("--set", "engine.seed=!!bool x"), "'!!bool x' is not valid YAML"),
        (("--set", "engine.seed=!!timestamp x"), "'!!timestamp x' is not valid YAML"),
        (("--disable", "logprobs", "--force", "LOGPROBS"), "'logprobs' is turned off and on at once"),
        (("--assume", "vlm==0.9.1"), "unknown package 'vlm'; did you mean 'vllm'?"),
        (("--assume", "vllm"), "write package==version"),
        (("--assume", "vllm==new"), "'new' is not a version"),
        (("--assume", f"vllm=={'9' * 5_000}"), "99… is not a version"),
        (("--locked", "/dev/zero"), "it has more than 16 MiB"),
        (("--assume", "platform==cud"), "unknown platform 'cud'; did you mean 'cuda'?"),
    ],
    ids=lambda value: value[1][:60] if isinstance(value, tuple) else "",
)
def test_a_name_or_value_that_does_not_exist_is_one_line_with_the_nearest(quirks, model, command, options, message):
    assert message in one_line(quirks(*command, "--model", model(), *options))


def test_a_name_in_the_environments_switch_that_does_not_exist_is_named_with_its_layer(quirks, model, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "v1-runtme")

    outcome = quirks("plan", "--model", model())

    assert "in the environment (MODEL_QUIRKS_DISABLE); did you mean 'v1-runtime'?" in one_line(outcome)


@OF_A_RUN
def test_no_model_says_how_to_give_one(quirks, command):
    assert "give --model" in one_line(quirks(*command))


def test_a_folder_that_does_not_exist_or_has_no_config_json_is_named(quirks, tmp_path):
    assert "does not exist" in one_line(quirks("plan", "--model", tmp_path / "none"))
    assert "has no config.json" in one_line(quirks("plan", "--model", tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "byte order mark, which transformers does not read: save it without BOM"),
        (b'{"a":' * 600 + b"1" + b"}" * 600, "is nested deeper than 50 levels"),
        (b'{"a":' + b"[" * 60 + b"]" * 60 + b"}", "is nested deeper than 50 levels"),
        (b"[" * 100_000, "is nested deeper than 50 levels"),
        (rb'{"bos_token": "\ud800"}', "holds half of a surrogate pair"),
        (b'{"vocab_size": ' + b"9" * 5_000 + b"}", "holds a number of more than 4300 digits"),
        (b'{"layer_types": [' + b"1," * 2**23 + b"1]}", "cannot be read: it has more than 16 MiB"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_a_broken_config_json_is_named(quirks, tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)

    line = one_line(quirks("plan", "--model", tmp_path))

    assert message in line
    assert "config.json" in line


@pytest.mark.parametrize("command", [("audit",), ("upgrade", "--model", "m", "--to")], ids=lambda words: words[0])
def test_a_name_that_no_file_can_have_is_one_line(quirks, command):
    outcome = quirks(*command, "x" * 5_000)

    assert (outcome.code, "xxx…: File name too long" in outcome.err) == (2, True)


def test_a_hub_id_that_cannot_be_read_is_one_line(program, tmp_path):
    done = program("plan", "--model", "some/model", HF_HOME=str(tmp_path))

    assert done.returncode == 2
    assert "config.json of 'some/model' cannot be read from the hub" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("modle: m\n", "no model: give --model"),
        ("modle: m\n", "modle: unknown key; did you mean 'model'?"),
        ("engine: {seed: x}\n", "engine.seed: "),
        ("quirks: {disable: ['']}\nmodel: m\n", "an empty name in the configuration (quirks.disable)"),
        (f"engine: {{hf_overrides: {'[' * 60}{']' * 60}}}\n", "is nested deeper than 50 levels"),
        ("engine: {hf_overrides: &a {b: *a}}\n", "is nested deeper than 50 levels"),
        ("[" * 50_000, "is nested deeper than 50 levels"),
        (f"engine: {{seed: {'9' * 5_000}}}\n", "is not valid YAML: ValueError: Exceeds the limit"),
        ("engine: {seed: 2026-13-45}\n", "is not valid YAML: ValueError: month must be in 1..12"),
        ("#" * 2**20 + "#", "cannot be read: it has more than 1 MiB"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_what_is_wrong_with_a_configuration_without_a_model_is_said_too(quirks, tmp_path, content, message):
    file = tmp_path / "run.yaml"
    file.write_text(content, encoding="utf-8")

    assert message in one_line(quirks("plan", "--config", file))


def test_a_byte_order_mark_before_a_configuration_is_none_of_it(quirks, model, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {model()}\npurpose: eval\n", encoding="utf-8-sig")

    assert quirks("plan", "--config", file, "--json").json["context"]["purpose"] == "eval"


@pytest.mark.parametrize("content", [None, "engine: [", "- a", "sampling: {top_q: 1}", "engine:\n  seed: 1\nengine: {}\n"])
def test_a_configuration_that_cannot_be_used_is_one_line(quirks, model, tmp_path, content):
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    one_line(quirks("plan", "--config", file, "--model", model()))
