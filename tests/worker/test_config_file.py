"""Configuration files in YAML, and command-line settings laid over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quirks_core import UsageError
from worker import GenerationConfig


@pytest.fixture
def yaml(tmp_path):
    """Writes a configuration file."""

    def write(text: str) -> Path:
        file = tmp_path / "run.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def problem(*arguments, **keywords) -> str:
    """What is wrong with a file or its settings."""
    with pytest.raises(UsageError) as caught:
        GenerationConfig.load(*arguments, **keywords)
    return str(caught.value)


def test_a_file_says_everything(yaml):
    file = yaml("model: some/model\npurpose: eval\nengine:\n  max_model_len: 512\nquirks:\n  disable: [v1-runtime]\n")

    config = GenerationConfig.load(file)

    assert (config.model_path, config.purpose, config.engine.max_model_len) == ("some/model", "eval", 512)
    assert config.quirks.disable == ("v1-runtime",)


def test_settings_override_the_file_and_count_as_typed(yaml):
    file = yaml("model: some/model\nengine:\n  seed: 1\n  max_model_len: 512\n")

    config = GenerationConfig.load(file, settings=["engine.seed=2", "train.sequence_packing=true"])

    assert (config.engine.seed, config.engine.max_model_len, config.train.sequence_packing) == (2, 512, True)
    assert "train.sequence_packing" in config.typed_slots()


def test_a_later_setting_beats_an_earlier_one():
    config = GenerationConfig.load(model="m", settings=["engine.seed=1", "engine.seed=2"])

    assert config.engine.seed == 2


def test_the_model_given_by_name_overrides_the_file_s_and_keeps_the_rest_of_its_section(yaml):
    file = yaml("model:\n  path: some/model\n  tokenizer: some/tokenizer\n")

    config = GenerationConfig.load(file, model="other/model")

    assert (config.model_path, config.model.tokenizer) == ("other/model", "some/tokenizer")


def test_a_setting_reaches_into_a_model_that_was_given_as_plain_text(yaml):
    config = GenerationConfig.load(yaml("model: some/model\n"), settings=["model.revision=abc"])

    assert (config.model_path, config.model_revision) == ("some/model", "abc")


def test_a_setting_reaches_into_vllm_kwargs():
    config = GenerationConfig.load(model="m", settings=["engine.vllm_kwargs.block_size=16"])

    assert config.engine.vllm_kwargs == {"block_size": 16}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.load_fromat=auto", "engine.load_fromat: unknown key; did you mean 'load_format'?"),
        ("engin.load_format=auto", "engin: unknown key; did you mean 'engine'?"),
        ("load_format=auto", "load_format: unknown key; did you mean 'engine.load_format'?"),
        ("refit.skope=parameters", "refit.skope: unknown key; did you mean 'scope'?"),
    ],
)
def test_an_unknown_slot_is_an_error_with_the_nearest_name(setting, message):
    assert problem(model="m", settings=[setting]) == message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.load_format", "write slot=value, for example engine.load_format=dummy"),
        ("=dummy", "write slot=value, for example engine.load_format=dummy"),
        ("engine.seed=[1", "'[1' is not valid YAML"),
        ("purpose.x=1", "'purpose' has no keys"),
    ],
)
def test_a_setting_that_cannot_be_read_is_an_error_that_quotes_it(setting, message):
    text = problem(model="m", settings=["purpose=eval", setting])

    assert text == f"--set {setting!r}: {message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("engine: [unclosed", "is not valid YAML"),
        ("engine:\n\tseed: 1\n", "is not valid YAML"),
        ("- a\n- b\n", "must hold a mapping, not list"),
        ("just text", "must hold a mapping, not str"),
        ("", "must hold a mapping, not NoneType"),
    ],
)
def test_a_file_that_cannot_be_read_as_a_mapping_is_an_error_on_one_line(yaml, content, message):
    text = problem(yaml(content))

    assert message in text
    assert "run.yaml" in text
    assert "\n" not in text


def test_a_file_that_is_no_text_is_an_error_on_one_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xff\xfe\x00")

    assert "is not valid YAML" in problem(file)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    text = problem(tmp_path / "none.yaml")

    assert text == f"configuration {tmp_path / 'none.yaml'} cannot be read: No such file or directory"


def test_without_a_model_the_error_says_how_to_give_one(yaml):
    assert "give --model" in problem(yaml("purpose: eval\n"))


@pytest.mark.parametrize("content", ["engine:\n  seed: 1\nengine:\n  dtype: auto\n", "engine:\n  seed: 1\n  seed: 1\n"])
def test_a_key_written_twice_is_an_error_with_its_place(yaml, content):
    text = problem(yaml(content))

    assert "is written twice" in text
    assert "line 3" in text


def test_a_file_may_merge_sections_and_override_them(yaml):
    file = yaml("model: m\ntrain: &all {tensor_parallel_size: 2}\nengine: {<<: *all, seed: 1}\n")

    config = GenerationConfig.load(file)

    assert (config.engine.tensor_parallel_size, config.engine.seed) == (2, 1)


def test_yaml_cannot_run_code(yaml):
    assert "is not valid YAML" in problem(yaml("model: !!python/object/apply:os.getcwd []\n"))
