"""The worker takes switches and a lock file; everything is decided before an engine starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quirks_core import Registry, UsageError
from quirks_core.lock import LOCKED_VARIABLE, Lock, LockError
from quirks_core.plan import Plan, State, Verdict
from worker import VllmAsyncGenerationWorker

QUIRK = "rollout-logprobs-processed"
SLOT = "engine.logprobs_mode"


@pytest.fixture(autouse=True)
def bare_shell(monkeypatch):
    """Nothing of the developer's switches counts, and no test may reach the engine."""
    for variable in ("MODEL_QUIRKS_DISABLE", "MODEL_QUIRKS_FORCE", "MODEL_QUIRKS_STRICT", LOCKED_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    before = "vllm" in sys.modules
    yield
    assert ("vllm" in sys.modules) is before


@pytest.fixture
def plan(model_folder):
    """Makes a worker and returns its plan."""

    def make(quirks=None, **switches) -> Plan:
        return VllmAsyncGenerationWorker({"model": str(model_folder), "quirks": quirks or {}}, **switches).plan

    return make


def verdict(plan: Plan, quirk: str = QUIRK) -> Verdict:
    """What was decided about one quirk."""
    return next(item for item in plan.verdicts if item.id == quirk)


def test_a_call_switches_a_quirk_off_and_the_plan_names_it(plan):
    made = plan(disable=[QUIRK])

    assert (verdict(made).state, made.value(SLOT)) == (State.DISABLED, None)
    assert verdict(made).because == f"switched off by {QUIRK!r} in the call (disable=)"


def test_a_call_forces_a_quirk_that_does_not_concern_the_run(plan):
    made = plan(force=["deepscaler-eager"])

    assert made.value("engine.enforce_eager") is True
    assert verdict(made, "deepscaler-eager").because.startswith("forced by 'deepscaler-eager' in the call (force=)")


def test_the_configuration_switches_off_and_forces(plan):
    made = plan({"disable": [QUIRK], "force": ["deepscaler-eager"]})

    assert (verdict(made).state, verdict(made, "deepscaler-eager").state) == (State.DISABLED, State.ACTIVE)


def test_a_call_beats_the_configuration(plan):
    assert verdict(plan({"disable": [QUIRK]}, force=[QUIRK])).state is State.ACTIVE


def test_a_name_that_does_not_exist_is_an_error_with_the_nearest(plan):
    with pytest.raises(UsageError, match=f"did you mean '{QUIRK}'"):
        plan(disable=["rollout-logprob-processed"])


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    """A lock file that expects a quirk that is not installed."""
    lock = Lock.of(Registry.load())
    file = tmp_path / "quirks.lock"
    missing = lock.quirks[0].model_copy(update={"id": "long-gone"})
    lock.model_copy(update={"quirks": (*lock.quirks, missing)}).write(file)
    return file


def test_the_configurations_lock_file_is_held_against_what_is_installed(plan, lock_file):
    with pytest.raises(LockError, match=r"long-gone of model-quirks .* is not loaded"):
        plan({"locked": str(lock_file)})


def test_the_environments_lock_file_is_held_against_what_is_installed(plan, lock_file, monkeypatch):
    monkeypatch.setenv(LOCKED_VARIABLE, str(lock_file))

    with pytest.raises(LockError, match="long-gone"):
        plan()


def test_a_lock_of_what_is_installed_passes(plan, tmp_path):
    Lock.of(Registry.load()).write(tmp_path / "quirks.lock")

    assert plan({"locked": str(tmp_path / "quirks.lock")}).active
