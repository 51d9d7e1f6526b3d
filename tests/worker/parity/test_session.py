"""What a parity run gives an engine beside its configuration. No engine runs."""

from __future__ import annotations

import os

import pytest

from quirks_core.configuration.variables import COMPILATION_SWITCHES
from quirks_core.plugins.planning import PlanOptions
from worker import GenerationConfig, VllmAsyncGenerationWorker
from worker.lab.kit.lab import Lab, configuration
from worker.lab.parity.session import _without_compilation


@pytest.fixture
def worker(tmp_path_factory, monkeypatch):
    """Makes a worker for a tiny model; its engine is not started."""
    for name in COMPILATION_SWITCHES:
        monkeypatch.delenv(name, raising=False)
    model = Lab(tmp_path_factory.mktemp("checkpoints")).checkpoint("qwen3")

    def make(platform="cpu", **values):
        config = GenerationConfig.parse(configuration(model, values))
        return VllmAsyncGenerationWorker(config, options=PlanOptions(assume=(f"platform=={platform}",)))

    return make


def switches():
    return {name: os.environ[name] for name in COMPILATION_SWITCHES if name in os.environ}


def test_compilation_is_switched_off_only_while_an_eager_engine_starts_on_the_cpu(worker):
    with _without_compilation(worker()):
        assert switches() == {"TORCHDYNAMO_DISABLE": "1"}

    assert switches() == {}


@pytest.mark.parametrize(
    ("platform", "values"),
    [("cuda", {}), ("cpu", {"engine": {"enforce_eager": False}}), ("cpu", {"env": {"TORCHDYNAMO_DISABLE": "0"}})],
)
def test_every_other_engine_starts_with_its_compilation_as_it_is(worker, platform, values):
    with _without_compilation(worker(platform, **values)):
        assert switches() == {}
