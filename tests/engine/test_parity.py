"""Parity on real engines: within rounding with the plan in force, and planted faults that are found and named."""

from __future__ import annotations

import json
import shutil

import pytest
from programs import run_python
from safetensors.torch import load_file, save_file

from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker import GenerationConfig
from worker.lab.attribution.run import run as ablate
from worker.lab.kit.lab import configuration
from worker.lab.parity.measure import measure
from worker.lab.parity.prompts import Prompts
from worker.lab.parity.records import Report
from worker.lab.parity.run import Options, run
from worker.lab.parity.session import Session
from worker.lab.parity.summary import headline
from worker.lab.parity.thresholds import chosen_thresholds
from worker.lab.parity.trainer import TrainerOptions

pytestmark = pytest.mark.usefixtures("forked")

#: What runs on a CPU with one engine.
_EVERYWHERE = (
    "cold-start",
    "temperature",
    "top-p-top-k",
    "decode-prefill",
    "prefix-cache",
    "long-context",
    "after-refit",
    "in-flight-cleared",
)


@pytest.fixture
def measured(checkpoint, lean):
    """Measures parity of a tiny model with a small engine."""

    async def report(kind, values=None, *, attribute=(), disable=(), **options):
        model = kind if not isinstance(kind, str) else checkpoint(kind)
        config = GenerationConfig.parse(configuration(model, lean(values)))
        planning = PlanOptions.gather(config, call=SwitchNames(disable))
        chosen = Options(**{"new_tokens": 32, "profile": "float32", "planning": planning, **options})
        return await (ablate(config, chosen, settings=attribute) if attribute else run(config, chosen))

    return report


def levels(report):
    return {result.scenario: result.level for result in report.results if result.gates and result.status == "measured"}


def culprit(report, scenario):
    """The setting that is blamed most."""
    (failed,) = [result for result in report.results if result.scenario == scenario]
    assert failed.level == "fail"
    assert not report.passed
    first = report.attributions[0]
    assert scenario in first.restores
    return first


async def test_with_the_plan_every_scenario_is_within_rounding(measured):
    """Qwen3-MoE; the other families below, and data-parallel ranks in test_one_engine.py."""
    report = await measured("qwen3_moe", new_tokens=16)

    assert levels(report) == dict.fromkeys(_EVERYWHERE, "ok")
    assert report.passed
    found = {result.scenario: result for result in report.results}
    assert found["prefix-cache"].notes["from the prefix cache"] > 0
    assert found["after-refit"].notes["mean |Δ logprob| of old and new weights"] > 0.01
    kept = found["in-flight-kept"]  # with what the old weights left behind: neither policy's, and not what the plan does
    assert (kept.gates, kept.level) == (False, "fail")


async def test_without_a_trainer_the_engine_is_its_own_reference(checkpoint, running, lab):
    """It can be held to equality in the last bit, also one without a batch-invariant mode."""
    async with running(checkpoint("qwen3"), {"engine": {"load_format": "auto"}}) as worker:
        alone = Session(worker, None, TrainerOptions(), Prompts(lab.PROMPTS), new_tokens=8, seed=0)
        results = await measure(alone, [], chosen_thresholds("float32"))
        (equal,) = await measure(alone, ["decode-prefill"], chosen_thresholds("float32", ["max_abs_delta<=0"]))

    assert {result.scenario: result.level for result in results if result.status == "measured"} == {
        "decode-prefill": "ok",
        "prefix-cache": "ok",
    }
    without = {result.reason for result in results if result.scenario in ("cold-start", "after-refit", "in-flight-cleared")}
    assert without == {"no trainer's model to compare with"}
    assert (equal.level, equal.metrics["max_abs_delta"]) == ("ok", 0)
    assert equal.metrics["tokens"] > 0


@pytest.mark.usefixtures("worker_in_core")
def test_the_command_line_writes_reports(checkpoint, tmp_path):
    small = ("engine.dtype=float32", "engine.enforce_eager=true", "engine.max_model_len=256")
    settings = [word for text in small for word in ("--set", text)]
    arguments = ["--model", checkpoint("gemma3"), *settings, "--tokens", "16", "--profile", "float32", "--json"]
    folder = tmp_path / "out"

    # In a process of its own, as vLLM sets variables where it runs.
    done = run_python("-m", "quirks_core.cli", "parity", *arguments, "--output", folder)

    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(done.stdout)
    assert levels(report) == dict.fromkeys(_EVERYWHERE, "ok")
    assert report.results[5].notes == {"prompt length": 32, "sliding window": 16}
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "report.json"]
    assert json.loads((folder / "report.json").read_text())["plan"] == report.plan


async def test_raw_logprobs_are_blamed_on_the_logprobs_mode(measured):
    report = await measured(
        "qwen3",
        {"sampling": {"temperature": 0.7}, "engine": {"logprobs_mode": "raw_logprobs"}},
        scenarios=("cold-start",),
        attribute=("engine.logprobs_mode", "train.attn_implementation"),
    )

    found = culprit(report, "cold-start")
    assert (found.setting, found.before, found.after) == ("engine.logprobs_mode", "raw_logprobs", "processed_logprobs")
    assert [quirk.id for quirk in found.quirks] == ["rollout-logprobs-processed"]
    assert len(report.steps) >= 3
    assert [other.setting for other in report.attributions if other.restores] == ["engine.logprobs_mode"]


async def test_an_old_prefix_cache_is_blamed_on_what_keeps_it(measured):
    """Qwen3: all else is within rounding."""
    report = await measured(
        "qwen3",
        {"refit": {"clear_cache": False}},
        attribute=("refit.clear_cache", "train.attn_implementation"),
        disable=("prefix-cache-after-update",),
    )

    found = culprit(report, "after-refit")
    assert (found.setting, found.before, found.after) == ("refit.clear_cache", False, True)
    assert [other.setting for other in report.attributions if other.restores] == ["refit.clear_cache"]
    keeps = {"after-refit", "in-flight-kept"}
    assert levels(report) == {
        **dict.fromkeys({*_EVERYWHERE, *keeps} - {"in-flight-cleared"}, "ok"),
        **dict.fromkeys(keeps, "fail"),
    }


async def test_scenarios_that_the_scope_of_a_refit_breaks_blame_it(measured):
    """Quirk apertus-xielu-buffers, paired: what is tried is what the quirk would have set."""
    report = await measured(
        "apertus",
        profile="bfloat16",  # vLLM keeps xIELU in bfloat16
        # Rounding depends on the batches, so on the machine's load; the fault is 1 nat and more.
        thresholds=("mean_abs_delta<=0.2", "mean_exp_abs_delta<=1.3", "mean_abs_dprob<=0.05"),
        attribute=("refit.scope", "train.attn_implementation"),
        disable=("apertus-xielu-buffers",),
    )

    found = culprit(report, "cold-start")
    assert (found.setting, found.before, found.after) == ("refit.scope", "parameters", "state_dict")
    failed = {name for name, level in levels(report).items() if level == "fail"}
    assert failed >= {"cold-start", "temperature", "after-refit", "in-flight-cleared"}
    assert set(found.restores) == failed
    assert [(quirk.id, quirk.state) for quirk in found.quirks if "xielu" in quirk.id] == [("apertus-xielu-buffers", "disabled")]


@pytest.fixture(scope="module")
def large_logits(checkpoint, tmp_path_factory):
    """A checkpoint whose logits are as large as a real model's (up to 30), and whose layers add nothing.

    The layers of a tiny random model differ more between two implementations in bfloat16 than its head does.
    """
    folder = tmp_path_factory.mktemp("large-logits") / "qwen3"
    shutil.copytree(checkpoint("qwen3"), folder)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    weights["model.norm.weight"].fill_(1.0)
    weights["lm_head.weight"].mul_(2.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


async def test_a_float32_head_is_blamed_on_the_other_sides_head(measured, large_logits):
    report = await measured(
        large_logits,
        {"engine": {"load_format": "auto", "dtype": "bfloat16", "head_dtype": "float32"}},
        profile="bfloat16",
        thresholds=("mean_abs_delta=0.002",),
        scenarios=("cold-start",),
        attribute=("train.head_dtype", "train.attn_implementation"),
    )

    found = culprit(report, "cold-start")
    assert (found.setting, found.after) == ("train.head_dtype", "float32")


@pytest.mark.parametrize("fault", [(), ("rollout-logprobs-processed",)], ids=["none", "raw logprobs"])
async def test_a_limit_that_rounding_crosses_is_told_from_a_fault(measured, fault):
    """Both sides in bfloat16 at a low temperature, which multiplies what they round."""
    values = {"engine": {"dtype": "bfloat16"}, "sampling": {"temperature": 0.1}, "train": {"dtype": "bfloat16"}}

    report = await measured("qwen3", values, scenarios=("cold-start",), profile="peers", disable=fault)

    (result,) = report.results
    assert result.metrics["mean_exp_abs_delta"] > 1.05
    assert result.level == ("fail" if fault else "rounding")
    assert report.passed == (not fault)
    assert ("quirks parity explain" in headline(report).advice) == (not fault)
