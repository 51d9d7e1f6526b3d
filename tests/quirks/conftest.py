"""How every built-in quirk is tested: through the real path, from a ``config.json`` and a configuration to the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from quirks_core import Plan, Registry, RunContext, Switches, Wishes
from quirks_core.plan import PlannedAdjustment, Refusal, State, Verdict
from worker import GenerationConfig


@dataclass(frozen=True)
class Outcome:
    """A plan, seen from the quirk that the test file is named after."""

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
    def refusals(self) -> list[Refusal]:
        """Why the quirk stops the run."""
        return [item for item in self.plan.refusals if any(by.id == self.quirk for by in item.quirks)]

    @property
    def warnings(self) -> list[str]:
        """The plan's warnings that name the quirk."""
        return [warning for warning in self.plan.warnings if warning.startswith(self.quirk)]


class PlanFor(Protocol):
    """Makes the plan for a model and a configuration."""

    def __call__(
        self,
        model_config: Mapping[str, Any],
        values: Mapping[str, Any] | None = None,
        *,
        assume: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        disable: Sequence[str] = (),
        name: str = "model",
    ) -> Outcome:
        """Plans a run of a model folder of that name, as if the shell held ``environ`` alone."""


@pytest.fixture(scope="session")
def registry() -> Registry:
    """Everything that is installed."""
    return Registry.load()


@pytest.fixture
def quirk_id(request: pytest.FixtureRequest) -> str:
    """The quirk that the test file is named after."""
    return request.path.stem.removeprefix("test_").replace("_", "-")


@pytest.fixture
def context_for(tmp_path: Path) -> Any:
    """Gathers the facts of a run from a model folder that holds a ``config.json`` alone; the shell counts for nothing."""

    def gather(
        model_config: Mapping[str, Any],
        values: Mapping[str, Any] | None = None,
        *,
        assume: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        name: str = "model",
    ) -> RunContext:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(model_config), encoding="utf-8")
        config = GenerationConfig.parse({"model": str(folder), **(values or {})})
        return RunContext.gather(config, assume=assume, environ=environ or {})

    return gather


@pytest.fixture
def plan_for(context_for: Any, registry: Registry, quirk_id: str) -> PlanFor:
    """Makes the plan for a run; the developer's environment does not leak in."""

    def plan(
        model_config: Mapping[str, Any], values: Mapping[str, Any] | None = None, *, disable: Sequence[str] = (), **run: Any
    ) -> Outcome:
        context = context_for(model_config, values, **run)
        switches = Switches.gather(command_line=Wishes(disable), environ={})
        return Outcome(registry.resolve(context, switches), quirk_id)

    return plan
