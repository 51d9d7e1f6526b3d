"""What an engine will be started with: configuration, plan, bundles and place in a group become arguments and environment.

The arguments of the installed engine are read from its source; no engine is imported.
"""

from __future__ import annotations

import sys

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plugins.planning import PlanOptions
from worker import VllmAsyncGenerationWorker, WorkerGroup
from worker.engine.engine_rank import EngineRank
from worker.launch import prepare
from worker.refit.engine.transfer import BACKEND

pytestmark = pytest.mark.usefixtures("shell", "without_vllm")
ENGINES = 3

#: Of each way to the engine one: with a default of ours, without, false, zero, a mapping, and an open slot.
EVERYTHING = {
    "load_format": "dummy",
    "data_parallel_size": 2,
    "enable_prefix_caching": False,
    "logprobs_mode": "raw_logprobs",
    "seed": 0,
    "compilation_config": {"mode": 0},
    "hf_overrides": {"max_window_layers": 5},
    "block_size": 16,
}


@pytest.fixture
def without_vllm():
    """Nothing of this needs the engine's package."""
    before = "vllm" in sys.modules
    yield
    assert ("vllm" in sys.modules) is before


@pytest.fixture
def launch(model):
    """Prepares a start: sections, and options of `prepare`."""

    def make(folder=None, *, assume=(), bundle_indices=None, fraction_of_gpus=1.0, seed=None, engine_rank=None, **sections):
        folder = folder or model()
        (folder / "model.safetensors").touch()
        typed = {"model": {"path": str(folder), **sections.pop("model", {})}, **sections}
        config = GenerationConfig.parse(typed)
        options = PlanOptions.gather(config, assume=assume)
        return prepare(
            config, options,
            bundle_indices=bundle_indices, fraction_of_gpus=fraction_of_gpus, seed=seed, engine_rank=engine_rank,
        )  # fmt: skip

    return make


# ---- one engine


def test_an_unadjusted_engine_gets_only_its_own_arguments(launch, model):
    others = {"train": {"sequence_packing": True}, "request": {"timeout_s": 5}, "refit": {"scope": "parameters"}}

    assert launch(purpose="serve", **others).arguments == {
        "model": str(model()),
        "load_format": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "disable_log_stats": True,
    }


def test_everything_that_the_user_typed_reaches_the_engine(launch, model, tmp_path):
    tokenizer = str(tmp_path)  # a folder: facts of one on the hub are asked of the hub
    found = launch(
        model("qwen3_moe", num_experts=4),
        model={"tokenizer": tokenizer, "revision": "abc"},
        engine={**EVERYTHING, "vllm_kwargs": {"distributed_executor_backend": "uni"}},
        parallel={"dp_strategy": "engine"},
    ).arguments

    typed = {**EVERYTHING, "tokenizer": tokenizer, "revision": "abc", "distributed_executor_backend": "uni"}
    assert {key: found.get(key) for key in typed} == typed


@pytest.mark.parametrize(
    ("purpose", "load_format", "transfer"),
    [("rollout", "dummy", {"backend": BACKEND}), ("eval", "auto", None), ("serve", "auto", None)],
)
def test_only_a_rollout_starts_from_dummy_weights(launch, purpose, load_format, transfer):
    arguments = launch(purpose=purpose).arguments

    assert (arguments["load_format"], arguments.get("weight_transfer_config")) == (load_format, transfer)


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_dummy_weights_that_may_generate_need_no_refit(launch, purpose):
    found = launch(purpose=purpose, engine={"load_format": "dummy", "generate_from_dummy": True})

    assert found.arguments["load_format"] == "dummy"
    assert "generate_from_dummy" not in found.arguments


def test_quirks_change_what_the_user_did_not_type(launch, model):
    folder = model("deepseek_v3")
    found = launch(folder).arguments
    typed = launch(folder, engine={"logprobs_mode": "raw_logprobs", "hf_overrides": {"max_window_layers": 5}}).arguments

    assert found["logprobs_mode"] == "processed_logprobs"
    assert found["hf_overrides"] == {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    assert typed["logprobs_mode"] == "raw_logprobs"
    assert typed["hf_overrides"] == {"max_window_layers": 5, **found["hf_overrides"]}


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        ({"head_dtype": "model"}, {"head_dtype": "model"}),
        ({"head_dtype": "float32", "hf_overrides": {"rope": 5}}, {"head_dtype": "float32", "rope": 5}),
        ({"hf_overrides": {"head_dtype": "float32", "rope": 5}}, {"head_dtype": "float32", "rope": 5}),
        ({}, None),
    ],
    ids=str,
)
def test_the_head_s_dtype_joins_the_user_s_overrides(launch, engine, overrides):
    arguments = launch(engine=engine).arguments

    assert arguments.get("hf_overrides") == overrides
    assert "head_dtype" not in arguments


@pytest.mark.parametrize("kind", [VllmAsyncGenerationWorker, WorkerGroup])
def test_a_synchronous_engine_is_a_usage_error(kind, model):
    with pytest.raises(UsageError, match=r"engine\.async_engine is false"):
        kind({"model": str(model()), "engine": {"async_engine": False}})


# ---- bundles of a placement group


@pytest.mark.parametrize(
    ("engine", "alone", "in_group"),
    [
        ({}, None, None),
        ({"tensor_parallel_size": 2}, "mp", "ray"),
        ({"pipeline_parallel_size": 2}, "mp", "ray"),
        ({"data_parallel_size": 2}, "mp", "mp"),
    ],
)
def test_several_ranks_name_their_executor(launch, engine, alone, in_group):
    """Left open, vLLM silently takes Ray's inside a placement group."""
    parallel = {"dp_strategy": "engine"} if "data_parallel_size" in engine else {}

    found = [launch(bundle_indices=bundles, engine=engine, parallel=parallel).arguments for bundles in (None, [0])]

    assert [arguments.get("distributed_executor_backend") for arguments in found] == [alone, in_group]


def test_workers_sample_alike_only_on_the_same_bundles(launch):
    bundles = [[0], [1], [2, 3], (4, 5)]

    seeds = [launch(bundle_indices=item).arguments["seed"] for item in bundles]

    assert len(set(seeds)) == len(bundles)
    assert launch(bundle_indices=[1]).arguments["seed"] == seeds[1]


@pytest.mark.parametrize(
    ("bundles", "call", "configured", "seed"),
    [(None, None, None, None), (None, 7, None, 7), ([3], 0, 5, 0), ([3], 7, None, 7), ([3], None, 5, 5)],
)
def test_the_seed_is_the_call_s_or_configured_or_the_bundle_s(launch, bundles, call, configured, seed):
    arguments = launch(bundle_indices=bundles, seed=call, engine={"seed": configured}).arguments

    assert arguments.get("seed") == seed


@pytest.mark.parametrize("bundles", [[4, 5], (4, 5)])
def test_the_engines_processes_learn_of_their_bundles(launch, bundles):
    assert launch(bundle_indices=bundles, fraction_of_gpus=0.5, env={"ACME": "1"}).environment == {
        "ACME": "1",
        "VLLM_RAY_BUNDLE_INDICES": "4,5",
        "VLLM_RAY_PER_WORKER_GPUS": "0.5",
    }
    assert launch().environment == {}


def test_named_variables_travel_to_actors_of_the_engine(model, monkeypatch):
    monkeypatch.setenv("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "MINE")

    worker = VllmAsyncGenerationWorker({"model": str(model())}, extra_env_vars=["QUANT_CONFIG"])

    assert worker._launch.environment["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == "MINE,QUANT_CONFIG"


# ---- one engine among several


@pytest.fixture
def ranked(launch, model):
    """What the engine of a place in a group would be started with."""

    def make(strategy, rank=0, engines=ENGINES, *, distinct_seeds=True, **engine):
        return launch(
            model("qwen3_moe", num_experts=12),
            engine={"data_parallel_size": ENGINES, **engine},
            parallel={"dp_strategy": strategy, "distinct_seeds": distinct_seeds},
            engine_rank=EngineRank(strategy, rank, engines, "192.0.2.7", 29600),
        ).arguments

    return make


_MEETING = {"data_parallel_address": "192.0.2.7", "data_parallel_rpc_port": 29600}


@pytest.mark.parametrize(
    ("strategy", "rank", "engines", "expected"),
    [
        *(("actors", rank, ENGINES, {"data_parallel_rank": rank, **_MEETING}) for rank in range(ENGINES)),
        ("independent", 1, ENGINES, {"data_parallel_size": 1}),
        ("engine", 0, 1, {}),
    ],
)
def test_an_engine_knows_its_place_in_the_group(ranked, strategy, rank, engines, expected):
    """An actor is one rank of a group that meets at rank 0; an independent engine knows of no other; one engine owns all."""
    found = ranked(strategy, rank, engines, enable_expert_parallel=strategy == "actors")

    place = {name: value for name, value in found.items() if name.startswith("data_parallel")}
    assert place == {"data_parallel_size": ENGINES, **expected}


@pytest.mark.parametrize("strategy", ["actors", "independent"])
@pytest.mark.parametrize("typed", [{}, {"seed": 7}], ids=["open", "typed"])
def test_engines_have_different_seeds_unless_equals_are_wanted(ranked, strategy, typed):
    first = typed.get("seed", 0)

    seeds = [ranked(strategy, rank, **typed)["seed"] for rank in range(ENGINES)]
    equal = {ranked(strategy, rank, distinct_seeds=False, **typed).get("seed") for rank in range(ENGINES)}

    assert seeds == [first, first + 1, first + 2]
    assert equal == {typed.get("seed")}
    assert ranked("engine", engines=1, **typed).get("seed") == typed.get("seed")


@pytest.mark.parametrize(
    ("purpose", "least", "temperature", "warns"),
    [("rollout", 5, 0.7, True), ("rollout", 5, 1.0, False), ("rollout", 0, 0.7, False), ("eval", 5, 0.7, False)],
)
def test_a_rollout_that_masks_end_tokens_warns_first(model, purpose, least, temperature, warns):
    """At temperature 1 a quirk asks for raw logprobs, which no mask changes."""
    folder = model()
    (folder / "model.safetensors").touch()
    sampling = {"min_new_tokens": least, "temperature": temperature}

    worker = VllmAsyncGenerationWorker({"model": str(folder), "purpose": purpose, "sampling": sampling})

    found = [text for text in worker.warnings if "sampling.min_new_tokens" in text]
    assert len(found) == warns
    assert not warns or ("= 5 masks the tokens that end a sample" in found[0] and "set sampling.min_new_tokens: 0" in found[0])


_SEVERAL = r"takes several engines: make a worker\.WorkerGroup, or set parallel\.dp_strategy"
_ROUTES = {"server": {"rl_routes": True}}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        *(({"fraction_of_gpus": share}, r"fraction_of_gpus must lie in \(0, 1\]") for share in (0.0, 1.5)),
        *(
            ({"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": strategy}}, _SEVERAL)
            for strategy in ("actors", "independent", None)
        ),
        *(
            ({"purpose": purpose, "engine": {"load_format": "dummy"}}, rf"with purpose: {purpose} no refit .*load_format: auto")
            for purpose in ("eval", "serve")
        ),
        ({"purpose": "eval", **_ROUTES}, "need purpose: rollout, not"),
        (
            {"engine_rank": EngineRank("actors", 0, 2, "192.0.2.7", 29600), **_ROUTES},
            "engines of one data-parallel group pause and refit",
        ),
    ],
)
def test_what_one_engine_cannot_do_is_a_usage_error(launch, model, given, problem):
    with pytest.raises(UsageError, match=problem):
        launch(model("qwen3_moe", num_experts=12), **given)
