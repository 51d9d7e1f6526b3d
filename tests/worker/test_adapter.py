"""Configuration and plan become the engine's arguments; the installed engine's are read from its source, not imported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quirks_core import SLOTS, Registry, RunContext, UsageError, sources
from worker import GenerationConfig
from worker.transfer import BACKEND
from worker.vllm_adapter import engine_arguments, read_configuration

#: Slots that choose between engines, or reach one as an override; the others under ``engine.`` are arguments of one.
NOT_ARGUMENTS = {"engine.async_engine", "engine.head_dtype", "engine.runtime"}

EVERYTHING = {
    "model": {"tokenizer": "some/tokenizer", "revision": "abc"},
    "engine": {
        "load_format": "dummy",
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
        "max_model_len": 512,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "async_scheduling": True,
        "kv_cache_dtype": "fp8",
        "generation_config": "auto",
        "enable_sleep_mode": True,
        "logprobs_mode": "raw_logprobs",
        "seed": 3,
        "max_num_seqs": 8,
        "compilation_config": {"level": 0},
        "hf_overrides": {"rope_theta": 5},
    },
}


@pytest.fixture
def arguments(model_folder):
    """Builds the engine's arguments for a configuration through the real path."""

    def build(values: dict[str, Any] | None = None, *, assume: tuple[str, ...] = (), **keywords: Any) -> dict[str, Any]:
        values = values or {}
        model = {"path": str(model_folder), **values.get("model", {})}
        config = GenerationConfig.parse({**values, "model": model})
        plan = Registry.load().resolve(RunContext.gather(config, assume=assume, environ={}))
        return engine_arguments(config, plan, **keywords)

    return build


def test_an_engine_that_nobody_adjusted_gets_little(arguments, model_folder):
    assert arguments({"purpose": "serve"}) == {
        "model": str(model_folder),
        "load_format": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "disable_log_stats": True,
        "worker_extension_cls": "worker.extension.WorkerReports",
    }


def test_everything_that_the_user_typed_reaches_the_engine(arguments):
    built = arguments(EVERYTHING)

    assert {key: built.get(key) for key in EVERYTHING["engine"]} == EVERYTHING["engine"]
    assert (built["tokenizer"], built["revision"]) == ("some/tokenizer", "abc")


def test_every_argument_that_we_can_produce_is_one_of_the_installed_engine():
    ours = {slot.removeprefix("engine.") for slot in SLOTS if slot.startswith("engine.") and slot not in NOT_ARGUMENTS}
    fixed = {"model", "tokenizer", "revision", "disable_log_stats", "distributed_executor_backend", "weight_transfer_config"}

    assert (ours | fixed) - sources.engine_fields() == set()


@pytest.mark.parametrize(("purpose", "load_format"), [("rollout", "dummy"), ("eval", "auto"), ("serve", "auto")])
def test_the_purpose_decides_the_load_format(arguments, purpose, load_format):
    assert arguments({"purpose": purpose})["load_format"] == load_format


def test_a_quirk_s_value_reaches_the_engine(arguments):
    assert arguments()["logprobs_mode"] == "processed_logprobs"
    assert arguments({"recipe": "deepscaler"})["enforce_eager"] is True


def test_the_user_s_value_beats_a_quirk_s_default(arguments):
    assert arguments({"engine": {"logprobs_mode": "raw_logprobs"}})["logprobs_mode"] == "raw_logprobs"


def test_a_setting_left_open_is_left_to_the_engine(arguments):
    built = arguments({"purpose": "serve"})

    assert not {"logprobs_mode", "dtype", "max_model_len", "enforce_eager", "seed", "tokenizer"} & built.keys()


def test_a_falsy_value_is_a_value(arguments):
    built = arguments({"engine": {"seed": 0, "enforce_eager": False, "enable_prefix_caching": False}})

    assert (built["seed"], built["enforce_eager"], built["enable_prefix_caching"]) == (0, False, False)


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        ({"head_dtype": "float32"}, {"head_dtype": "float32"}),
        ({"head_dtype": "model"}, {"head_dtype": "model"}),
        ({"head_dtype": "float32", "hf_overrides": {"rope_theta": 5}}, {"head_dtype": "float32", "rope_theta": 5}),
        ({"hf_overrides": {"head_dtype": "float32", "rope_theta": 5}}, {"head_dtype": "float32", "rope_theta": 5}),
        ({}, None),
    ],
    ids=str,
)
def test_the_head_s_dtype_reaches_the_engine_beside_the_user_s_own_overrides(arguments, engine, overrides):
    built = arguments({"engine": engine})

    assert built.get("hf_overrides") == overrides
    assert "head_dtype" not in built


def test_a_trainer_s_head_in_float32_reaches_the_engine(arguments):
    built = arguments({"train": {"head_dtype": "float32"}}, assume=("vllm==0.32.0",))

    assert built["hf_overrides"] == {"head_dtype": "float32"}


def test_vllm_kwargs_reach_the_engine_as_they_are(arguments):
    built = arguments({"engine": {"vllm_kwargs": {"block_size": 16, "distributed_executor_backend": "uni"}}})

    assert (built["block_size"], built["distributed_executor_backend"]) == (16, "uni")


def test_an_argument_that_the_engine_lacks_is_an_error_with_the_nearest_one(arguments):
    with pytest.raises(UsageError, match="did you mean 'max_num_seqs'"):
        arguments({"engine": {"vllm_kwargs": {"max_num_seq": 4}}})


@pytest.mark.parametrize(
    ("engine", "in_placement_group", "executor"),
    [
        ({}, False, None),
        ({}, True, None),
        ({"tensor_parallel_size": 2}, False, "mp"),
        ({"pipeline_parallel_size": 2}, False, "mp"),
        ({"data_parallel_size": 2}, False, "mp"),
        ({"tensor_parallel_size": 2}, True, "ray"),
        ({"pipeline_parallel_size": 2}, True, "ray"),
        ({"data_parallel_size": 2}, True, "mp"),
    ],
)
def test_several_ranks_name_their_executor(arguments, engine, in_placement_group, executor):
    built = arguments({"engine": engine}, in_placement_group=in_placement_group)

    assert built.get("distributed_executor_backend") == executor


def test_a_rollout_can_be_refitted(arguments):
    assert arguments()["weight_transfer_config"] == {"backend": BACKEND}


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_an_engine_without_a_trainer_opens_no_way_to_its_weights(arguments, purpose):
    assert "weight_transfer_config" not in arguments({"purpose": purpose})


def test_what_the_engine_runs_with_is_read_back_as_plain_values():
    config = SimpleNamespace(
        model_config=SimpleNamespace(head_dtype=torch.float32, generation_config="vllm"),
        cache_config=SimpleNamespace(cache_dtype="fp8"),
        scheduler_config=SimpleNamespace(async_scheduling=False, enable_chunked_prefill=True),
    )

    found = {slot: value for slot, value in read_configuration(config).items() if value is not None}

    assert found == {
        "engine.async_scheduling": False,
        "engine.enable_chunked_prefill": True,
        "engine.generation_config": "vllm",
        "engine.head_dtype": "float32",
        "engine.kv_cache_dtype": "fp8",
    }


def test_slots_of_trainer_request_and_refit_are_no_arguments(arguments):
    built = arguments({"train": {"sequence_packing": True}, "request": {"timeout_s": 5}, "refit": {"scope": "parameters"}})

    assert not {"sequence_packing", "attn_implementation", "timeout_s", "scope", "async_engine", "runtime"} & built.keys()
