"""How every built-in quirk is tested: through the real path, from a ``config.json`` and a configuration to the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quirks_core import Plan
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.records import PlannedAdjustment, Refusal, State, Verdict
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.planning import PlanOptions, make_plan
from quirks_core.plugins.registry import Registry


@dataclass(frozen=True)
class Outcome:
    """A plan, seen from the quirk that the test file is named after.

    Attributes:
        plan: The plan.
        quirk: The quirk's id.
    """

    plan: Plan
    quirk: str

    @property
    def verdict(self) -> Verdict:
        """What was decided about the quirk."""
        return next(verdict for verdict in self.plan.verdicts if verdict.id == self.quirk)

    @property
    def state(self) -> State:
        """What became of the quirk."""
        return self.verdict.state

    @property
    def adjustments(self) -> dict[str, PlannedAdjustment]:
        """What the quirk asked for, by slot."""
        return {item.slot: item for item in self.plan.adjustments if any(by.id == self.quirk for by in item.quirks)}

    @property
    def changes(self) -> dict[str, Any]:
        """The slots that the quirk changes, with their new values."""
        return {slot: item.value for slot, item in self.adjustments.items() if item.status == "applied"}

    @property
    def statuses(self) -> dict[str, str]:
        """What became of each thing that it asked for, by slot."""
        return {slot: str(item.status) for slot, item in self.adjustments.items()}

    @property
    def refusals(self) -> list[Refusal]:
        """Why the quirk stops the run."""
        return [item for item in self.plan.refusals if any(by.id == self.quirk for by in item.quirks)]

    @property
    def warnings(self) -> list[str]:
        """The plan's warnings that name the quirk."""
        return [warning for warning in self.plan.warnings if warning.startswith(self.quirk)]

    @property
    def patched(self) -> list[str]:
        """The names of the attributes that the quirk patches."""
        return sorted(item.target.rpartition(":")[2] for item in self.plan.patches if item.quirk.id == self.quirk)

    @property
    def refused_by(self) -> set[str]:
        """Every quirk that stops the run."""
        return {quirk.id for refusal in self.plan.refusals for quirk in refusal.quirks}


@pytest.fixture(scope="session")
def registry() -> Registry:
    """Everything that is installed."""
    return Registry.load()


@pytest.fixture
def plan_for(tmp_path: Path, registry: Registry, request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Plans a run; the developer's environment does not leak in."""
    quirk = request.path.stem.removeprefix("test_").replace("_", "-")

    def plan(
        model: str | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        assume: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        disable: Sequence[str] = (),
        name: str = "model",
    ) -> Outcome:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        config = {"model_type": model} if isinstance(model, str) else dict(model)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        values: dict[str, Any] = {"model": str(folder)}
        for slot, value in (settings or {}).items():
            section, dot, key = slot.partition(".")
            values.update({section: {**values.get(section, {}), key: value}} if dot else {slot: value})
        switches = Switches.gather(command_line=SwitchNames(disable), environ={})
        options = PlanOptions(switches=switches, assume=tuple(assume))
        return Outcome(make_plan(GenerationConfig.parse(values), options, registry=registry, environ=environ or {}), quirk)

    return plan
