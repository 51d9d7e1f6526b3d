"""A trainer that starts its engine by itself resets the prefix cache also while requests run; our worker needs no help."""

from __future__ import annotations

from types import SimpleNamespace

from quirks_core.configuration.engine_run import EngineRun
from quirks_core.plugins.planning import make_plan


def test_only_rollouts_of_engines_that_others_start_are_patched(plan_for, registry, model):
    run = {"engine": {"runtime": "v1", "load_format": "dummy"}, "model": str(model())}

    plans = [
        make_plan(EngineRun.told({**run, "purpose": purpose}, ()), registry=registry, environ={})
        for purpose in ("rollout", "serve")
    ]

    patched = [[patch.target for patch in plan.patches if patch.quirk.id == "prefix-reset-refused"] for plan in plans]
    assert patched == [["vllm.v1.engine.core:EngineCoreProc.reset_prefix_cache"], []]
    assert plan_for("qwen3").state == "not_matched"


def test_a_reset_takes_running_requests_along_whatever_the_caller_says(monkeypatch):
    class Core:
        def reset_prefix_cache(self, running=False, connector=False):
            return running, connector

    class Proc(Core):
        pass

    monkeypatch.setitem(__import__("sys").modules, "vllm.v1.engine.core", SimpleNamespace(EngineCoreProc=Proc))
    from quirks_plugins.prefix_cache.prefix_reset_patches import reset_prefix_cache

    seen = []
    monkeypatch.setattr(Core, "reset_prefix_cache", lambda _, *arguments: seen.append(arguments) or True)

    assert [reset_prefix_cache(Proc()), reset_prefix_cache(Proc(), False, True)] == [True, True]
    assert seen == [(True, False), (True, True)]
