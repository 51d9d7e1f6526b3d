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

from quirks_core import Default, ModelFlag, Plan, Quirk, Require, Severity, purpose, report
from quirks_core.loaded import Loaded
from quirks_core.testing.bare import BareRegistry
from quirks_core.validate import problems
from worker.parity.skeleton import skeleton

ROOT = Path(__file__).parents[3]
FIGURES = {"mean_abs_delta": (0.31, 2e-6), "ess": (0.2, 1.0)}
#: The run, what the ladder tried, and what is in force afterwards.
CASES: dict[str, tuple[dict[str, Any], str, Any, Any, dict[str, Any]]] = {
    "left open": ({}, "engine.enable_prefix_caching", None, False, {"engine.enable_prefix_caching": False}),
    "a default of the configuration": (
        {"settings": {"refit.scope": "parameters"}, "typed": ()},
        "refit.scope",
        "parameters",
        "state_dict",
        {"refit.scope": "state_dict"},
    ),
    "of the trainer": ({}, "train.attn_implementation", None, "eager", {"train.attn_implementation": "eager"}),
    "two at once": (
        {},
        "engine.head_dtype + train.head_dtype",
        [None, None],
        ["float32", "float32"],
        {"engine.head_dtype": "float32", "train.head_dtype": "float32"},
    ),
    "three at once": (
        {"settings": {"refit.scope": "parameters"}, "typed": ()},
        "engine.enable_prefix_caching + engine.async_scheduling + refit.scope",
        [None, True, "parameters"],
        [False, False, "state_dict"],
        {"engine.enable_prefix_caching": False, "engine.async_scheduling": False, "refit.scope": "state_dict"},
    ),
    "a source build": (
        {"packages": {"vllm": "0.1.dev1+g1234567"}},
        "engine.enforce_eager",
        False,
        True,
        {"engine.enforce_eager": True},
    ),
    "a build without tags": (
        {"packages": {"vllm": "0.0.0"}},
        "engine.enforce_eager",
        False,
        True,
        {"engine.enforce_eager": True},
    ),
    "a local label": ({"packages": {"vllm": "0.32.0+cpu"}}, "engine.dtype", None, "float32", {"engine.dtype": "float32"}),
    "no model type": ({"config": {}}, "engine.dtype", "bfloat16", "float32", {"engine.dtype": "float32"}),
    "a strange model type": (
        {"config": {"model_type": 'Acme "2.5" MoE'}},
        "engine.dtype",
        "bfloat16",
        "float32",
        {"engine.dtype": "float32"},
    ),
    "no rollout": (
        {"purpose": "eval", "settings": {"sampling.temperature": 0.0}},
        "engine.dtype",
        None,
        "float32",
        {"engine.dtype": "float32"},
    ),
}


@pytest.fixture
def planned(quirk_context) -> Callable[..., Plan]:
    """The plan of a run, with some quirks."""

    def build(*quirks: Quirk, **facts: Any) -> Plan:
        given = {"config": {"model_type": "qwen3"}, "packages": {"vllm": "0.32.0"}, "platform": "cpu", **facts}
        others = quirks or (_quirk("nothing", Default("request.timeout_s", 600.0)),)
        return BareRegistry().add(*others).resolve(quirk_context(**given))

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


def _quirk(name: str, *adjustments: Any) -> Quirk:
    return Quirk(
        id=name,
        title="-",
        flag=ModelFlag.RUNTIME,
        match=purpose("rollout", "eval", "serve"),
        adjustments=adjustments,
        severity=Severity.NOISE,
        references=(report("https://example.org"),),
    )


def _text(plan: Plan, case: str) -> str:
    _, setting, before, after, _ = CASES[case]
    return skeleton(plan, setting, before, after, "after-refit", FIGURES)


@pytest.mark.parametrize("case", CASES)
def test_the_run_that_it_came_from_gets_what_was_tried(case, planned, imported):
    facts, *_, wanted = CASES[case]
    plan = planned(**facts)

    module = imported(_text(plan, case))
    new = BareRegistry().add(module.QUIRK, distribution="your-package").resolve(plan.context)

    assert new.refusals == ()
    assert [verdict.state for verdict in new.verdicts] == ["active"]
    assert {slot: new.value(slot) for slot in wanted} == wanted
    assert all(line.in_force for line in new.adjustments)
    assert {line.slot for line in new.adjustments} == set(wanted)


@pytest.mark.parametrize("case", CASES)
def test_it_keeps_the_laws_of_quirks(case, planned, imported):
    module = imported(_text(planned(**CASES[case][0]), case))

    found = problems(Loaded(module.QUIRK, "your-package", "0.1.0", module.QUIRK.id))

    assert found == []


def test_it_is_written_as_ruff_formats_it_and_passes_its_checks(planned, tmp_path):
    for case, (facts, *_) in CASES.items():
        (tmp_path / f"{case.replace(' ', '_')}.py").write_text(_text(planned(**facts), case), encoding="utf-8")
    long = "a-folder-with-a-long-name/" * 5
    typed = planned(settings={"engine.generation_config": long})
    text = skeleton(typed, "engine.generation_config", long, "vllm", "temperature", FIGURES)
    (tmp_path / "long.py").write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]

    form = subprocess.run([*ruff, "format", "--diff", *options], capture_output=True, text=True, check=False)
    checks = subprocess.run([*ruff, "check", *options], capture_output=True, text=True, check=False)

    assert len(list(tmp_path.iterdir())) == len(CASES) + 1
    assert (form.returncode, form.stdout) == (0, "")
    assert checks.returncode == 0, checks.stdout


def test_other_models_versions_and_purposes_are_left_alone(planned, imported, quirk_context):
    quirk = imported(_text(planned(), "left open")).QUIRK
    registry = BareRegistry().add(quirk)
    same = {"config": {"model_type": "qwen3"}, "packages": {"vllm": "0.32.0"}}

    states = [
        registry.resolve(quirk_context(**{**same, **other})).verdicts[0].state
        for other in ({}, {"config": {"model_type": "llama"}}, {"packages": {"vllm": "0.31.0"}}, {"purpose": "serve"})
    ]

    assert states == ["active", "not_matched", "dormant", "not_matched"]


def test_a_value_that_the_user_typed_is_refused_and_without_it_the_quirk_sets_its_own(planned, imported, quirk_context):
    facts = {"settings": {"engine.logprobs_mode": "raw_logprobs"}}
    plan = planned(**facts)

    quirk = imported(skeleton(plan, "engine.logprobs_mode", "raw_logprobs", "processed_logprobs", "temperature", FIGURES)).QUIRK
    registry = BareRegistry().add(quirk)

    (refusal,) = registry.resolve(plan.context).refusals
    assert "remove engine.logprobs_mode from the configuration" in refusal.remedy
    without = quirk_context(config={"model_type": "qwen3"}, packages={"vllm": "0.32.0"})
    assert registry.resolve(without).changes == {"engine.logprobs_mode": "processed_logprobs"}


def test_a_quirk_that_set_the_value_in_force_does_not_stand_in_the_way(planned, imported):
    for rival in (Default("engine.enforce_eager", False), Require("engine.enforce_eager", False)):
        old = _quirk("old", rival)
        plan = planned(old)

        quirk = imported(skeleton(plan, "engine.enforce_eager", False, True, "cold-start", FIGURES)).QUIRK
        new = BareRegistry().add(old, quirk).resolve(plan.context)

        assert new.refusals == ()
        assert new.value("engine.enforce_eager") is True


def test_what_no_quirk_can_set_becomes_advice(planned, imported):
    plan = planned(platform="cuda")

    quirk = imported(skeleton(plan, "env.VLLM_BATCH_INVARIANT", None, "1", "cold-start", FIGURES)).QUIRK
    new = BareRegistry().add(quirk).resolve(plan.context)

    assert any("set VLLM_BATCH_INVARIANT=1" in warning for warning in new.warnings)
    assert problems(Loaded(quirk, "your-package", "0.1.0", quirk.id)) == []


def test_it_says_what_was_measured_and_where(planned, imported):
    module = imported(_text(planned(), "left open"))

    text = " ".join(inspect.getdoc(module).split())
    assert "in the scenario after-refit on vLLM 0.32.0 (cpu)" in text
    assert "mean_abs_delta is 0.31, and 2e-06 with engine.enable_prefix_caching = False" in text
    assert module.QUIRK.evidence[0].scenario == "your_package.qwen3_enable_prefix_caching:scenario"
    assert module.QUIRK.flag == ModelFlag.PREFIX_CACHE
    assert inspect.iscoroutinefunction(module.scenario)
    assert list(inspect.signature(module.scenario).parameters) == ["lab"]
