"""How built-in quirks are tested together: through the real path, from a ``config.json`` and a configuration to the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from installed import HAS_VLLM

from quirks_core import Plan
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry

#: Tests of what comes with an engine, or with its tools.
_OF_ENGINES = (
    "coalesced_outputs",
    "decode_slots",
    "fp8_block_experts",
    "installed_source",
    "model_config",
    "rollout_precision",
)
collect_ignore = [] if HAS_VLLM else [f"test_{name}.py" for name in _OF_ENGINES]


@pytest.fixture(scope="session")
def registry() -> Registry:
    """Everything that is installed."""
    return Registry.load()


@pytest.fixture
def plan_for(tmp_path: Path, registry: Registry) -> Callable[..., Plan]:
    """Plans a run; the developer's environment does not leak in."""

    def plan(
        model: str | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        disable: Sequence[str] = (),
        assume: Sequence[str] = (),
    ) -> Plan:
        config = {"model_type": model} if isinstance(model, str) else dict(model)
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        values: dict[str, Any] = {"model": str(tmp_path)}
        for slot, value in (settings or {}).items():
            section, dot, key = slot.partition(".")
            values.update({section: {**values.get(section, {}), key: value}} if dot else {slot: value})
        switches = Switches.gather(command_line=SwitchNames(disable), environ={})
        options = PlanOptions(switches=switches, assume=tuple(assume))
        return make_plan(GenerationConfig.parse(values), options, registry=registry, environ=environ or {})

    return plan


@pytest.fixture(scope="session")
def refused_by() -> Callable[[Plan], set[str]]:
    """The quirks that stop a run."""
    return lambda plan: {quirk.id for refusal in plan.refusals for quirk in refusal.quirks}
