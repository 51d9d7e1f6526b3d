"""What an engine will be started with: seeds and bundles of the workers of one group."""

from __future__ import annotations

import pytest

from quirks_core import UsageError
from worker import VllmAsyncGenerationWorker


@pytest.fixture
def launch(model_folder):
    """Makes a worker and returns what its engine would be started with."""

    def make(*args, engine=None, **options):
        worker = VllmAsyncGenerationWorker({"model": str(model_folder), "engine": engine or {}}, *args, **options)
        return worker._launch

    return make


def test_workers_on_different_bundles_sample_differently(launch):
    bundles = [[0], [1], [2, 3], (0, [4, 5]), (1, [0]), (1, [1]), (2, [0, 1])]

    seeds = [launch(item).arguments["seed"] for item in bundles]

    assert len(set(seeds)) == len(bundles)


def test_a_worker_on_its_own_leaves_the_seed_to_the_engine(launch):
    assert "seed" not in launch().arguments


@pytest.mark.parametrize("bundles", [None, [3], (1, [3])])
def test_an_explicit_seed_wins_over_bundles_and_configuration(launch, bundles):
    assert launch(bundles, seed=7).arguments["seed"] == 7
    assert launch(bundles, seed=0, engine={"seed": 5}).arguments["seed"] == 0


def test_the_configured_seed_wins_over_the_bundles(launch):
    assert launch([3], engine={"seed": 5}).arguments["seed"] == 5


def test_the_same_bundles_give_the_same_seed_again(launch):
    assert launch((1, [2])).arguments["seed"] == launch((1, [2])).arguments["seed"]


@pytest.mark.parametrize("bundles", [[4, 5], (4, 5), (0, [4, 5]), (1, (4, 5)), [1, [4, 5]]])
def test_the_engines_processes_learn_of_their_bundles(launch, bundles):
    environment = launch(bundles, 0.5).environment

    assert environment["VLLM_RAY_BUNDLE_INDICES"] == "4,5"
    assert environment["VLLM_RAY_PER_WORKER_GPUS"] == "0.5"


def test_without_bundles_the_environment_says_nothing_of_them(launch):
    assert not [name for name in launch().environment if name.startswith("VLLM_RAY_")]


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_of_a_gpu_that_makes_no_sense_is_a_usage_error(launch, fraction):
    with pytest.raises(UsageError, match=r"fraction_of_gpus must lie in \(0, 1\]"):
        launch([0], fraction)


def test_a_synchronous_engine_is_none_of_this_worker(launch):
    with pytest.raises(UsageError, match=r"engine\.async_engine is false"):
        launch(engine={"async_engine": False})
