"""An engine's place in a group becomes its arguments."""

from __future__ import annotations

import json

import pytest

from quirks_core import UsageError
from quirks_core.plan import RefusedError
from quirks_core.switches import Wishes
from worker import VllmAsyncGenerationWorker, launch
from worker.place import Place

ENGINES = 3


@pytest.fixture
def moe_folder(tmp_path):
    """A MoE's folder with a ``config.json`` and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 12}), encoding="utf-8")
    return tmp_path


@pytest.fixture
def arguments(moe_folder):
    """What the engine of a place in a group of three would be started with."""

    def make(strategy, rank=0, engines=ENGINES, port=29600, distinct_seeds=None, **engine):
        config = {
            "model": str(moe_folder),
            "engine": {"data_parallel_size": ENGINES, **engine},
            "parallel": {"dp_strategy": strategy, "distinct_seeds": distinct_seeds},
        }
        place = Place(strategy, rank, engines, "192.0.2.7", port)
        return launch.prepare(config, None, 1.0, None, Wishes(), place).arguments

    return make


def _data_parallel(arguments):
    return {name: value for name, value in arguments.items() if name.startswith("data_parallel")}


@pytest.mark.parametrize("rank", range(ENGINES))
def test_an_actor_is_one_rank_of_the_group_and_meets_the_others_at_rank_0(arguments, rank):
    assert _data_parallel(arguments("actors", rank, enable_expert_parallel=True)) == {
        "data_parallel_size": ENGINES,
        "data_parallel_rank": rank,
        "data_parallel_address": "192.0.2.7",
        "data_parallel_rpc_port": 29600,
    }


@pytest.mark.parametrize("rank", range(ENGINES))
def test_an_independent_engine_knows_of_no_other(arguments, rank):
    assert _data_parallel(arguments("independent", rank)) == {"data_parallel_size": 1}


def test_one_engine_owns_all_ranks(arguments):
    assert _data_parallel(arguments("engine", engines=1)) == {"data_parallel_size": ENGINES}


@pytest.mark.parametrize("strategy", ["actors", "independent"])
@pytest.mark.parametrize("typed", [{}, {"seed": 7}], ids=["open", "typed"])
def test_no_two_engines_have_the_same_seed(arguments, strategy, typed):
    first = typed.get("seed", 0)

    seeds = [arguments(strategy, rank, **typed)["seed"] for rank in range(ENGINES)]

    assert seeds == [first, first + 1, first + 2]


@pytest.mark.parametrize("strategy", ["actors", "independent"])
@pytest.mark.parametrize("typed", [{}, {"seed": 7}], ids=["open", "typed"])
def test_who_wants_equal_replicas_gets_one_seed_for_all(arguments, strategy, typed):
    seeds = {arguments(strategy, rank, distinct_seeds=False, **typed).get("seed") for rank in range(ENGINES)}

    assert seeds == {typed.get("seed")}


@pytest.mark.parametrize("typed", [{}, {"seed": 7}], ids=["open", "typed"])
def test_one_engine_keeps_the_seed_that_it_was_given(arguments, typed):
    assert arguments("engine", engines=1, **typed).get("seed") == typed.get("seed")


@pytest.mark.parametrize(
    ("strategy", "sizes", "executor"),
    [
        ("actors", {}, "mp"),
        ("engine", {}, "mp"),
        ("independent", {"tensor_parallel_size": 2}, "mp"),
        ("independent", {}, None),
    ],
)
def test_no_engine_of_several_ranks_leaves_the_executor_to_vllm(arguments, strategy, sizes, executor):
    """Every actor is in a placement group, where vLLM would take Ray's executor."""
    engines = 1 if strategy == "engine" else ENGINES

    assert arguments(strategy, engines=engines, **sizes).get("distributed_executor_backend") == executor


def test_a_group_of_one_engine_is_no_group(arguments):
    found = arguments("independent", engines=1, data_parallel_size=1)

    assert _data_parallel(found) == {"data_parallel_size": 1}
    assert "seed" not in found


def test_a_worker_without_a_group_owns_its_ranks(moe_folder):
    engine = {"data_parallel_size": 2, "enable_expert_parallel": True}
    worker = VllmAsyncGenerationWorker({"model": str(moe_folder), "engine": engine})

    assert worker.plan.value("parallel.dp_strategy") == "engine"
    assert _data_parallel(worker._launch.arguments) == {"data_parallel_size": 2}
    assert worker._launch.arguments["distributed_executor_backend"] == "mp"


def test_a_worker_without_a_group_and_with_one_rank_has_no_strategy(moe_folder):
    worker = VllmAsyncGenerationWorker({"model": str(moe_folder)})

    assert worker.plan.value("parallel.dp_strategy") is None


@pytest.mark.parametrize("strategy", ["actors", "independent"])
def test_a_worker_without_a_group_cannot_be_several_engines(moe_folder, strategy):
    config = {"model": str(moe_folder), "engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": strategy}}

    with pytest.raises(UsageError, match=rf"dp_strategy '{strategy}' takes several engines: make a worker\.WorkerGroup"):
        VllmAsyncGenerationWorker(config)


def test_a_place_does_not_make_a_refused_configuration_work(model_folder):
    config = {"model": str(model_folder), "engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": "actors"}}

    with pytest.raises(RefusedError, match="this one is dense"):
        launch.prepare(config, None, 1.0, None, Wishes(), Place("actors", 0, 2, "192.0.2.7", 29600))
