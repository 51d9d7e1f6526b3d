"""The configuration: what the user typed in files, settings and calls, checked; and with what a plan changes."""

from __future__ import annotations

import pytest
from yaml import SafeLoader

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.sections import Section
from quirks_core.configuration.slots import SLOTS
from quirks_core.configuration.yaml_file import read_value


def problem(values):
    """What is wrong with a configuration."""
    with pytest.raises(UsageError) as caught:
        GenerationConfig.parse({"model": "some/model", **values})
    return str(caught.value)


@pytest.fixture
def yaml(tmp_path):
    """Writes a configuration file."""

    def write(text):
        file = tmp_path / "run.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize(
    "values",
    [
        {"engin": {}},
        {"model": {"path": "m", "revison": "x"}},
        {"purpose": "train", "engine": {"tensor_parallel_size": 0}, "refit": {"scop": 1}},
        {"engine": {"block_size": 16, "vllm_kwargs": {"block_size": 32}}},
        {"engine": {"head_dtype": "model", "hf_overrides": {"head_dtype": "float32"}}},
        {"env": {"A=B": "1", "A\0B": "1"}},
        {"env": {"VLLM_USE_V1": True}},
    ],
    ids=repr,
)
def test_all_impossible_keys_are_in_one_error(messages, values):
    messages(problem(values))


def test_numbers_in_the_env_section_become_text(parse):
    assert parse(env={"VLLM_USE_V1": 0, "SECONDS": 30, "EMPTY": ""}).env == {"VLLM_USE_V1": "0", "SECONDS": "30", "EMPTY": ""}


def test_a_plain_text_or_path_is_the_path_of_the_model(tmp_path):
    assert GenerationConfig.parse({"model": "some/model"}).model.path == "some/model"
    assert GenerationConfig.parse({"model": tmp_path}).model.path == str(tmp_path)


@pytest.mark.parametrize("section", [{"block_size": 16}, {"vllm_kwargs": {"block_size": 16}}], ids=["here", "vllm_kwargs"])
def test_any_further_argument_of_the_engine_is_a_typed_slot(parse, section):
    config = parse(engine={**section, "seed": 3})

    assert config.engine.further == {"block_size": 16}
    assert config.typed_slots() == {"engine.block_size", "engine.seed"}
    assert config.slots()["engine.block_size"] == 16


def test_a_key_in_an_alias_counts_as_typed_in_its_own_place(parse):
    config = parse(engine={"seed": 3, "vllm_kwargs": {"seed": 3, "load_format": "x", "hf_overrides": {"head_dtype": "model"}}})
    overrides = parse(engine={"hf_overrides": {"head_dtype": "float32", "rope_theta": 5}})

    assert (config.engine.seed, config.engine.load_format, config.engine.head_dtype) == (3, "x", "model")
    assert (config.engine.further, config.typed_slots()) == ({}, {"engine.load_format", "engine.seed", "engine.head_dtype"})
    assert (overrides.engine.head_dtype, overrides.engine.hf_overrides) == ("float32", {"rope_theta": 5})


@pytest.mark.parametrize(("purpose", "load_format"), [("rollout", "dummy"), ("eval", "auto"), ("serve", "auto")])
def test_the_purpose_decides_on_a_load_format_that_was_not_typed(parse, purpose, load_format):
    assert parse(purpose=purpose).slots()["engine.load_format"] == load_format
    assert parse(purpose=purpose, engine={"load_format": "x"}).slots()["engine.load_format"] == "x"


def test_a_slot_is_typed_if_the_user_gave_it_a_value(parse):
    config = parse(engine={"tensor_parallel_size": 1, "dtype": None}, refit={"scope": "parameters"})

    assert parse().typed_slots() == frozenset()
    assert config.typed_slots() == {"engine.tensor_parallel_size", "refit.scope"}
    assert {"engine.dtype", None}.isdisjoint({*config.slots(), *map(str, config.slots().values())})


def test_every_field_says_what_it_sets(parse):
    sections = {type(part) for _, part in parse() if isinstance(part, Section)}

    assert len(sections) > 8
    assert [key for section in sections for key, field in section.model_fields.items() if not field.description] == []


def test_every_default_suits_its_slot(parse):
    assert [why for name, value in parse().slots().items() if (why := SLOTS[name].problem(value))] == []


def test_only_what_a_plan_changes_is_adjusted(parse):
    config = parse(engine={"seed": 1}, sampling={"stop_token_ids": [7]}, env={"A": "0", "B": "0"})
    engine = {"engine.load_format": "auto", "engine.block_size": 32}

    adjusted = config.adjusted({**engine, "sampling.stop_token_ids": [7, 8], "env.A": "1", "env.C": "2"})

    assert (adjusted.engine.load_format, adjusted.engine.seed, adjusted.engine.further) == ("auto", 1, {"block_size": 32})
    assert (adjusted.sampling.stop_token_ids, adjusted.env) == ((7, 8), {"A": "1", "B": "0", "C": "2"})
    assert GenerationConfig.model_validate(adjusted.model_dump(exclude_unset=True)) == adjusted
    assert (config.engine.load_format, config.sampling.stop_token_ids, config.env["A"]) == (None, (7,), "0")
    assert config.adjusted({}) == config


def test_what_a_program_overrides_counts_as_typed_by_nobody(parse):
    config = parse(engine={"data_parallel_size": 4, "seed": 1, "block_size": 16})

    overridden = config.overridden({"engine.data_parallel_size": 1, "engine.block_size": 32})

    assert (overridden.engine.data_parallel_size, overridden.engine.further) == (1, {"block_size": 32})
    assert overridden.typed_slots() == {"engine.seed"}
    assert config.typed_slots() == {"engine.data_parallel_size", "engine.seed", "engine.block_size"}


def test_settings_override_the_file(yaml):
    file = yaml("model: {path: some/model, tokenizer: t}\npurpose: eval\nengine:\n  seed: 1\n  max_model_len: 512\n")
    engine = ["engine.seed=2", "engine.seed=3", "engine.block_size=16", "engine.vllm_kwargs.max_logprobs=5"]

    config = GenerationConfig.load(file, model="other/model", settings=[*engine, "model.revision=abc"])

    assert (config.model.path, config.model.tokenizer, config.model.revision) == ("other/model", "t", "abc")
    assert (config.purpose, config.engine.max_model_len, config.engine.seed) == ("eval", 512, 3)
    assert config.engine.further == {"block_size": 16, "max_logprobs": 5}
    assert "engine.max_logprobs" in config.typed_slots()
    assert GenerationConfig.load(yaml("model: some/model\n"), settings=["model.revision=abc"]).model.path == "some/model"


def test_a_file_may_override_keys_of_a_section_that_it_merges(yaml):
    file = yaml("model: m\ntrain: &all {tensor_parallel_size: 2}\nengine: {<<: *all, seed: 1}\n")

    assert GenerationConfig.load(file).typed_slots() == {
        "engine.seed", "engine.tensor_parallel_size", "train.tensor_parallel_size",
    }  # fmt: skip


def test_a_date_is_text_also_in_a_process_that_has_imported_vllm(monkeypatch):
    monkeypatch.setitem(SafeLoader.yaml_constructors, "tag:yaml.org,2002:timestamp", SafeLoader.construct_yaml_null)

    assert read_value("2026-11-24", "--set x") == "2026-11-24"
