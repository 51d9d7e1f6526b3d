"""Bad input: one clear line with the nearest name, exit code 2, no traceback. The lines are in ``tests/messages.txt``."""

from __future__ import annotations

import pytest
from installed import needs_vllm

#: Commands that describe a run, and read it in different modules.
OF_A_RUN = [("plan",), ("explain", "v1-runtime")]


@pytest.fixture(autouse=True)
def wide(own_shell, monkeypatch):  # noqa: ARG001 - before this, which it would undo
    """No message wraps, whatever it quotes."""
    monkeypatch.setenv("COLUMNS", "2000")


def one_line(outcome):
    """The error of a command that ended with 2."""
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    return line


@needs_vllm
@pytest.mark.parametrize(
    "options",
    [
        ("--set", "engine.load_fromat=auto"),
        ("--set", "engine.load_format"),
        ("--set", "engine.seed=[1"),
        ("--set", "purpose=eval", "--set", "purpose.x=1"),
        ("--set", "engine.block_size=big"),
        ("--disable", "v1-runtme"),
        ("--disable", ""),
        ("--locked", ""),
        ("--set", "refit.transport=ipc_zqm"),
        ("--assume", "vllm"),
    ],
    ids=lambda options: " ".join(options)[:60],
)
def test_a_name_or_value_that_does_not_exist_is_one_line(quirks, model, messages, options):
    messages(*{one_line(quirks(*command, "--model", model(), *options)) for command in OF_A_RUN})


def test_an_unknown_quirk_is_named_with_the_nearest(quirks, model, messages):
    messages(*{one_line(quirks(*verb, "v1-runtme")) for verb in [("explain", "--model", model()), ("show",)]})


def test_no_model_says_how_to_give_one(quirks, messages):
    messages(one_line(quirks("plan")))


def test_a_folder_without_a_config_json_is_named(quirks, messages, tmp_path):
    messages(*(one_line(quirks("plan", "--model", folder)) for folder in (tmp_path / "none", tmp_path)))


@pytest.mark.parametrize("content", [b"{", b"[]"], ids=repr)
def test_a_broken_config_json_is_named(quirks, tmp_path, messages, content):
    (tmp_path / "config.json").write_bytes(content)

    messages(one_line(quirks("plan", "--model", tmp_path)))


@needs_vllm
def test_a_hub_id_that_cannot_be_read_is_one_line(program, tmp_path):
    done = program("plan", "--model", "some/model", HF_HOME=str(tmp_path))

    assert done.returncode == 2
    assert "config.json of 'some/model' cannot be read from the hub" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [None, "", "engine: [", "engine:\n  seed: 1\nengine: {}\n", "model: !!python/object/apply:os.getcwd []\n"],
    ids=repr,
)
def test_a_configuration_that_cannot_be_used_is_one_line(quirks, model, tmp_path, messages, content):
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    messages(one_line(quirks("plan", "--config", file, "--model", model())))
