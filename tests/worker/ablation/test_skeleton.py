"""The declaration that a new quirk begins with: Python that runs, applies to the run that it came from, and keeps the laws."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quirks_core import Default, ModelFlag, Plan, Quirk, Require, purpose
from quirks_core.loaded import Loaded
from quirks_core.testing.isolated_registry import IsolatedRegistry
from quirks_core.validate import problems
from worker.ablation.skeleton import skeleton
from worker.parity.records import Change

ROOT = Path(__file__).parents[3]
FIGURES = {"mean_abs_delta": (0.31, 2e-6), "ess": (0.2, 1.0)}
_SCOPE = {"settings": {"refit.scope": "parameters"}, "typed": ()}
#: The run, and what was tried.
CASES: dict[str, tuple[dict[str, Any], str, Any, Any]] = {
    "not set": ({}, "engine.enable_prefix_caching", None, False),
    "a default of the configuration": (_SCOPE, "refit.scope", "parameters", "state_dict"),
    "of the trainer": ({}, "train.attn_implementation", None, "eager"),
    "a variable": ({"platform": "cuda"}, "env.VLLM_BATCH_INVARIANT", None, "1"),
    "three at once": (
        _SCOPE,
        "engine.enable_prefix_caching + engine.async_scheduling + refit.scope",
        [None, True, "parameters"],
        [False, False, "state_dict"],
    ),
    "a source build": ({"vllm": "0.1.dev1+g1234567"}, "engine.enforce_eager", False, True),
    "a build without tags": ({"vllm": "0.0.0"}, "engine.enforce_eager", False, True),
    "a local label": ({"vllm": "0.32.0+cpu"}, "engine.dtype", None, "float32"),
    "no model type": ({"model": None}, "engine.dtype", "bfloat16", "float32"),
    "a strange model type": ({"model": 'Acme "2.5" MoE'}, "engine.dtype", "bfloat16", "float32"),
    "no rollout": ({"purpose": "eval", "settings": {"sampling.temperature": 0.0}}, "engine.dtype", None, "float32"),
}
_TYPED = "engine.logprobs_mode"


@pytest.fixture
def planned(quirk_context, declare) -> Callable[..., Plan]:
    """The plan of a run, with some quirks."""

    def build(*quirks: Quirk, **run: Any) -> Plan:
        given = {"model": "qwen3", "vllm": "0.32.0", "platform": "cpu", **run}
        others = quirks or (declare("nothing", Default("request.timeout_s", 600.0)),)
        return IsolatedRegistry().add(*others).resolve(quirk_context(**given))

    return build


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a text as a module, as its package would."""

    def load(text: str) -> ModuleType:
        file = tmp_path / "your_package_quirk.py"
        file.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


def _text(plan: Plan, setting: str, before: Any, after: Any) -> str:
    return skeleton(plan, Change(setting=setting, before=before, after=after), "after-refit", FIGURES)


@pytest.mark.parametrize("case", CASES)
def test_the_run_that_it_came_from_gets_what_was_tried_and_the_laws_of_quirks_are_kept(case, planned, imported):
    run, *change = CASES[case]
    plan = planned(**run)

    quirk = imported(_text(plan, *change)).QUIRK
    new = IsolatedRegistry().add(quirk, distribution="your-package").resolve(plan.context)

    wanted = {name: value for name, _, value in Change(setting=change[0], before=change[1], after=change[2]).parts}
    assert new.refusals == ()
    assert [verdict.state for verdict in new.verdicts] == ["active"]
    assert {slot: new.value(slot) for slot in wanted} == wanted
    assert {line.slot for line in new.adjustments if line.in_force} == set(wanted)
    assert problems(Loaded(quirk, "your-package", "0.1.0", quirk.id)) == []


def test_it_is_written_as_ruff_formats_it_and_passes_its_checks(planned, tmp_path):
    long = "a-folder-with-a-long-name/" * 5
    typed = ({"settings": {"engine.generation_config": long}}, "engine.generation_config", long, "vllm")
    for case, (run, *change) in {**CASES, "long": typed}.items():
        (tmp_path / f"{case.replace(' ', '_')}.py").write_text(_text(planned(**run), *change), encoding="utf-8")
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]

    form, checks = (
        subprocess.run([sys.executable, "-m", "ruff", *verb, *options], capture_output=True, text=True, check=False)
        for verb in (("format", "--diff"), ("check",))
    )

    assert len(list(tmp_path.iterdir())) == len(CASES) + 1
    assert (form.returncode, form.stdout) == (0, "")
    assert checks.returncode == 0, checks.stdout


def test_other_models_versions_and_purposes_are_left_alone(planned, imported, quirk_context):
    registry = IsolatedRegistry().add(imported(_text(planned(), *CASES["not set"][1:])).QUIRK)
    same = {"model": "qwen3", "vllm": "0.32.0"}

    states = [
        registry.resolve(quirk_context(**{**same, **other})).verdicts[0].state
        for other in ({}, {"model": "llama"}, {"vllm": "0.31.0"}, {"purpose": "serve"})
    ]

    assert states == ["active", "not_matched", "dormant", "not_matched"]


def test_a_value_that_the_user_typed_is_refused_and_without_it_the_quirk_sets_its_own(planned, imported, quirk_context):
    plan = planned(settings={_TYPED: "raw_logprobs"})

    registry = IsolatedRegistry().add(imported(_text(plan, _TYPED, "raw_logprobs", "processed_logprobs")).QUIRK)

    (refusal,) = registry.resolve(plan.context).refusals
    assert f"remove {_TYPED} from the configuration" in refusal.remedy
    assert registry.resolve(quirk_context("qwen3", vllm="0.32.0")).changes == {_TYPED: "processed_logprobs"}


@pytest.mark.parametrize("kind", [Default, Require])
def test_a_quirk_that_set_the_value_in_force_does_not_stand_in_the_way(kind, planned, imported, declare):
    old = declare("old", kind("engine.enforce_eager", False), match=purpose("rollout", "eval", "serve"))
    plan = planned(old)

    quirk = imported(_text(plan, "engine.enforce_eager", False, True)).QUIRK
    new = IsolatedRegistry().add(old, quirk).resolve(plan.context)

    assert new.refusals == ()
    assert new.value("engine.enforce_eager") is True


def test_it_says_what_was_measured_and_where_and_its_scenario_is_its_paired_run(planned, imported):
    module = imported(_text(planned(), *CASES["not set"][1:]))

    text = " ".join(inspect.getdoc(module).split())
    assert "in the scenario after-refit on vLLM 0.32.0 (cpu)" in text
    assert "mean_abs_delta is 0.31, and 2e-06 with engine.enable_prefix_caching = False" in text
    assert module.QUIRK.flag == ModelFlag.PREFIX_CACHE
    assert [run.scenario for run in module.QUIRK.paired_runs] == ["your_package_quirk:scenario"]
    assert list(inspect.signature(module.scenario).parameters) == ["lab"]
