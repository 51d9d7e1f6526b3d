"""The worker takes switches and a lock file; everything is decided before an engine starts."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import BrokenPluginsError
from quirks_core.plan.records import Plan, State
from quirks_core.plugins.lock import Lock, LockError
from quirks_core.plugins.registry import Registry
from worker import VllmAsyncGenerationWorker

pytestmark = pytest.mark.usefixtures("shell")
QUIRK = "rollout-logprobs-processed"


@pytest.fixture
def plan(model):
    """Makes a worker and returns its plan."""

    def make(quirks=None, **switches) -> Plan:
        return VllmAsyncGenerationWorker({"model": str(model()), "quirks": quirks or {}}, **switches).plan

    return make


def test_the_plan_says_what_a_call_switches(plan):
    made = plan(disable=[QUIRK], force=["recurrent-state-float32"])

    verdicts = {item.id: item for item in made.verdicts}
    assert verdicts[QUIRK].state is State.DISABLED
    assert made.value("engine.logprobs_mode") is None
    assert made.value("engine.mamba_ssm_cache_dtype") == "float32"
    assert verdicts[QUIRK].because == f"switched off by {QUIRK!r} in the call (disable=)"
    assert verdicts["recurrent-state-float32"].because.startswith("forced by 'recurrent-state-float32' in the call (force=)")


def test_a_lock_file_is_held_against_what_is_installed(plan, tmp_path):
    lock, file = Lock.of(Registry.load()), tmp_path / "quirks.lock"
    missing = lock.quirks[0].model_copy(update={"id": "long-gone"})

    lock.write(file)
    assert plan({"locked": str(file)}).active
    lock.model_copy(update={"quirks": (*lock.quirks, missing)}).write(file)
    with pytest.raises(LockError, match=r"long-gone of model-quirks .* is not loaded"):
        plan({"locked": str(file)})


def test_a_broken_plugin_is_an_error_only_under_strict(plan, install, monkeypatch):
    install("acme-broken", "raise RuntimeError('broken for good')")
    assert any("broken for good" in warning.text for warning in plan().warnings)

    monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")
    with pytest.raises(BrokenPluginsError, match="broken for good"):
        plan()
