"""The configuration: what the user typed, checked, with its defaults."""

from __future__ import annotations

import pytest

from quirks_core import SLOTS, UsageError
from worker import GenerationConfig
from worker.config import EngineSection

EVERY_PURPOSE = ["rollout", "eval", "serve"]


def problem(values: dict) -> str:
    """What is wrong with a configuration."""
    with pytest.raises(UsageError) as caught:
        GenerationConfig.parse({"model": "some/model", **values})
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engin": {}}, "engin: unknown key; did you mean 'engine'?"),
        ({"load_format": "auto"}, "load_format: unknown key; did you mean 'engine.load_format'?"),
        ({"model": {"path": "m", "revison": "x"}}, "model.revison: unknown key; did you mean 'revision'?"),
        ({"engine": {"load_fromat": "auto"}}, "engine.load_fromat: unknown key; did you mean 'load_format'?"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature: unknown key; did you mean 'temperature'?"),
        ({"train": {"context_parallel": 2}}, "train.context_parallel: unknown key; did you mean 'context_parallel_size'?"),
        ({"cluster": {"nodes": 2}}, "cluster.nodes: unknown key; did you mean 'num_nodes'?"),
        ({"refit": {"scop": "parameters"}}, "refit.scop: unknown key; did you mean 'scope'?"),
        ({"refit": {"transprot": "file"}}, "refit.transprot: unknown key; did you mean 'transport'?"),
        ({"sampling": {"stop_string": ["a"]}}, "sampling.stop_string: unknown key; did you mean 'stop_strings'?"),
        ({"request": {"timeout": 5}}, "request.timeout: unknown key; did you mean 'timeout_s'?"),
        ({"quirks": {"disabled": []}}, "quirks.disabled: unknown key; did you mean 'disable'?"),
    ],
)
def test_an_unknown_key_at_any_level_is_an_error_with_the_nearest_name(values, message):
    assert problem(values) == message


def test_an_engine_key_that_is_nothing_like_ours_is_pointed_to_vllm_kwargs():
    assert problem({"engine": {"swap_space": 4}}) == (
        "engine.swap_space: unknown key; any other argument of vLLM goes under engine.vllm_kwargs"
    )


def test_everything_that_is_wrong_is_said_at_once():
    text = problem({"purpose": "train", "engine": {"tensor_parallel_size": 0, "sed": 1}})

    assert "purpose: Input should be 'rollout', 'eval' or 'serve', not 'train'" in text
    assert "engine.tensor_parallel_size" in text
    assert "engine.sed: unknown key; did you mean 'seed'?" in text


@pytest.mark.parametrize(
    "values",
    [
        {"engine": {"tensor_parallel_size": 0}},
        {"engine": {"gpu_memory_utilization": 1.5}},
        {"engine": {"logprobs_mode": "processed"}},
        {"engine": {"runtime": "v2"}},
        {"engine": {"head_dtype": "bfloat16"}},
        {"engine": {"async_scheduling": "perhaps"}},
        {"engine": {"kv_cache_dtype": 8}},
        {"engine": {"generation_config": {}}},
        {"engine": None},
        {"sampling": {"temperature": -1}},
        {"sampling": {"top_p": 0}},
        {"train": {"backend": "ddp"}},
        {"train": {"dtype": "fp32"}},
        {"train": {"head_dtype": "bfloat16"}},
        {"parallel": {"distinct_seeds": "some"}},
        {"refit": {"scope": "everything"}},
        {"refit": {"transport": "pickle"}},
        {"refit": {"timeout_s": 0}},
        {"refit": {"buffer_mb": 0}},
        {"refit": {"clear_cache": "perhaps"}},
        {"sampling": {"min_new_tokens": -1}},
        {"sampling": {"stop_strings": "END"}},
        {"sampling": {"top_k": -2}},
        {"engine": {"enable_sleep_mode": "deep"}},
        {"request": {"timeout_s": 0}},
        {"env": {"VLLM_USE_V1": "yes"}},
        {"env": {"VLLM_USE_V1": True}},
        {"model": None},
        {"model": ""},
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_an_error_that_names_its_key(values):
    ((section, content),) = values.items()

    text = problem(values)

    assert text.startswith(section)
    assert all(key in text for key in content or ())


def test_a_section_cannot_be_changed_afterwards(parse):
    config = parse()

    with pytest.raises(ValueError, match="frozen"):
        config.engine.seed = 1


def test_a_plain_text_or_path_is_the_model_s_path(tmp_path):
    assert GenerationConfig.parse({"model": "some/model"}).model_path == "some/model"
    assert GenerationConfig.parse({"model": tmp_path}).model_path == str(tmp_path)


def test_numbers_in_the_env_section_become_text(parse):
    assert parse(env={"VLLM_USE_V1": 0, "NRL_VLLM_ASYNC_TIMEOUT_SECONDS": 30}).environment() == {
        "VLLM_USE_V1": "0",
        "NRL_VLLM_ASYNC_TIMEOUT_SECONDS": "30",
    }


def test_a_key_of_ours_under_vllm_kwargs_counts_as_typed_in_its_own_place(parse):
    config = parse(engine={"vllm_kwargs": {"load_format": "dummy", "max_num_seqs": 4, "block_size": 16}})

    assert config.engine.load_format == "dummy"
    assert "engine.load_format" in config.typed_slots()
    assert "engine.max_num_seqs" in config.typed_slots()
    assert config.engine.vllm_kwargs == {"block_size": 16}


def test_the_same_key_typed_twice_with_one_value_is_fine(parse):
    config = parse(engine={"seed": 3, "vllm_kwargs": {"seed": 3}})

    assert config.engine.seed == 3


def test_the_same_key_typed_twice_with_two_values_is_an_error_that_names_both_places():
    text = problem({"engine": {"seed": 1, "vllm_kwargs": {"seed": 2}}})

    assert text == "engine: seed set twice with different values, here and under vllm_kwargs"


@pytest.mark.parametrize("wrapped", [False, True], ids=["hf_overrides", "vllm_kwargs.hf_overrides"])
def test_a_head_s_dtype_among_the_overrides_counts_as_typed_in_its_own_place(parse, wrapped):
    overrides = {"hf_overrides": {"head_dtype": "float32", "rope_theta": 5}}

    config = parse(engine={"vllm_kwargs": overrides} if wrapped else overrides)

    assert config.engine.head_dtype == "float32"
    assert config.engine.hf_overrides == {"rope_theta": 5}
    assert config.typed_slots() == {"engine.head_dtype", "engine.hf_overrides"}


def test_a_head_s_dtype_alone_among_the_overrides_leaves_them_open(parse):
    config = parse(engine={"hf_overrides": {"head_dtype": "model"}})

    assert config.typed_slots() == {"engine.head_dtype"}


def test_a_head_s_dtype_typed_twice_with_two_values_is_an_error_that_names_both_places():
    text = problem({"engine": {"head_dtype": "model", "hf_overrides": {"head_dtype": "float32"}}})

    assert text == "engine: head_dtype set twice with different values, here and under hf_overrides"


def test_an_argument_that_the_installed_engine_lacks_is_an_error_with_the_nearest_one(parse):
    config = parse(engine={"vllm_kwargs": {"max_num_seq": 4, "kv_cache_dtyp": "fp8"}})

    with pytest.raises(UsageError) as caught:
        config.check_engine_arguments()

    assert str(caught.value) == (
        "engine.vllm_kwargs.max_num_seq: the installed vLLM has no such engine argument; did you mean 'max_num_seqs'?; "
        "engine.vllm_kwargs.kv_cache_dtyp: the installed vLLM has no such engine argument; did you mean 'kv_cache_dtype'?"
    )


def test_arguments_that_the_installed_engine_has_pass(parse):
    parse(engine={"vllm_kwargs": {"max_num_seqs": 4, "block_size": 16}}).check_engine_arguments()


@pytest.mark.parametrize(("purpose", "load_format"), [("rollout", "dummy"), ("eval", "auto"), ("serve", "auto")])
def test_the_purpose_decides_where_weights_come_from(parse, purpose, load_format):
    assert parse(purpose=purpose).slots()["engine.load_format"] == load_format


@pytest.mark.parametrize("purpose", EVERY_PURPOSE)
def test_an_explicit_load_format_wins_over_the_purpose(parse, purpose):
    assert parse(purpose=purpose, engine={"load_format": "safetensors"}).slots()["engine.load_format"] == "safetensors"


def test_a_run_is_a_rollout_unless_it_says_otherwise(parse):
    assert parse().purpose == "rollout"


def test_nothing_is_typed_by_default(parse):
    assert parse().typed_slots() == frozenset()


def test_a_slot_is_typed_if_the_user_wrote_it_even_with_its_default(parse):
    config = parse(engine={"tensor_parallel_size": 1}, refit={"scope": "parameters"})

    assert config.typed_slots() == {"engine.tensor_parallel_size", "refit.scope"}


def test_a_slot_that_is_left_open_has_no_value(parse):
    slots = parse(engine={"dtype": None}).slots()

    assert "engine.dtype" not in slots
    assert None not in slots.values()


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if not slot.startswith("env.")])
def test_every_slot_but_a_variable_is_a_path_into_the_configuration(slot):
    section, _, key = slot.partition(".")

    fields = GenerationConfig.model_fields[section].annotation.model_fields

    assert key in fields


@pytest.mark.parametrize("purpose", EVERY_PURPOSE)
def test_every_default_of_the_configuration_suits_its_slot(parse, purpose):
    slots = parse(purpose=purpose).slots()

    assert [SLOTS[slot].problem(value) for slot, value in slots.items()] == [None] * len(slots)


def test_every_engine_key_is_documented():
    text = EngineSection.__doc__

    assert [key for key in EngineSection.model_fields if f"{key}:" not in text] == []


def test_a_refit_leaves_the_cache_to_a_quirk_and_waits_two_minutes_unless_told_otherwise(parse):
    refit = parse().refit

    assert (refit.transport, refit.clear_cache, refit.timeout_s, refit.socket_dir) == ("ipc_zmq", None, 120.0, None)


def test_a_list_of_stop_strings_is_kept_in_its_order(parse):
    assert parse(sampling={"stop_strings": ["b", "a"]}).sampling.stop_strings == ("b", "a")


def test_null_leaves_a_slot_open(parse):
    config = parse(engine={"load_format": None, "seed": 0})

    assert config.typed_slots() == {"engine.seed"}
    assert config.slots()["engine.load_format"] == "dummy"
