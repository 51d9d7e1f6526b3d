"""A user's run, planned with some of the installed quirks or with quirks of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Quirk
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.finder import discover
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry
from quirks_core.testing.isolated_registry import IsolatedRegistry
from worker import GenerationConfig
from worker.lab.attribution.variant import Start

#: The quirks of most runs here; others would cure some of the faults by themselves.
_QUIRKS = ("rollout-logprobs-processed", "gemma4-layer-scalar", "async-rollout-timeout")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "VLLM_BATCH_INVARIANT", "MODEL_QUIRKS_DISABLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def user(model: Callable[..., Path]) -> Callable[..., Start]:
    """Plans a run of a model of some type, whose engine computes in bfloat16, with quirks or the names of installed ones."""

    def build(
        model_type: str = "qwen3", *, disable: Sequence[str] = (), installed: Sequence[str | Quirk] = _QUIRKS, **values: Any
    ) -> Start:
        config = GenerationConfig.parse({"model": str(model(model_type, dtype="bfloat16")), **values})
        named = [item for item in discover() if item.name in installed]
        registry = Registry.load(named) if named else IsolatedRegistry().add(*installed)._registry
        planning = PlanOptions.gather(config, call=SwitchNames(disable))
        return Start(config, make_plan(config, planning, registry=registry), registry, planning)

    return build
