"""Reports made by hand, for the tests of everything that shows one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from worker.parity.metrics import measured
from worker.parity.records import Attribution, Coverage, Report, Result, Sample, Step
from worker.parity.thresholds import Threshold, judge

_SKELETON = 'QUIRK = Quirk(\n    id="acme/kept-cache",  # <- a name\n    adjustments=Default("refit.clear_cache", True),\n)\n'
#: Limits of our own, so that these tests do not move with the profiles.
_THRESHOLDS = (
    Threshold("something-measured", "tokens", 1, "low", "fail", "ours: nothing compared is nothing shown"),
    Threshold("all-finite", "nonfinite", 0, "high", "fail", "ours: a logprob is a number"),
    Threshold(
        "nemo-rl-error", "mean_exp_abs_delta", 1.05, "high", "fail", "the trainer's guide: https://guide.test/models.html"
    ),
    Threshold("verl-probability-normal", "mean_abs_dprob", 0.005, "high", "warn", "FAQ: https://verl.test/faq.rst"),
    Threshold("verl-probability-fault", "mean_abs_dprob", 0.01, "high", "fail", "FAQ: https://verl.test/faq.rst"),
    Threshold("verl-kl", "kl_k1", 0.1, "size", "fail", "health check: https://verl.test/health.md"),
    Threshold("verl-ratio-mean-low", "ratio_mean", 0.5, "low", "fail", "health check: https://verl.test/health.md"),
    Threshold("verl-ratio-mean-high", "ratio_mean", 2.0, "high", "fail", "health check: https://verl.test/health.md"),
    Threshold("verl-effective-samples", "ess", 0.3, "low", "fail", "health check: https://verl.test/health.md"),
    Threshold("verl-chi-squared", "ratio_chi2", 1.0, "high", "fail", "health check: https://verl.test/health.md"),
    Threshold("in-sync", "mean_abs_delta", 0.02, "high", "warn", "seen in https://trl.test/issues/5312"),
    Threshold("stale-weights", "mean_abs_delta", 0.2, "high", "fail", "seen in https://trl.test/issues/5312"),
    Threshold("healthy-kl", "kl_k3", 0.01, "high", "warn", "seen in https://prime.test/pull/2714"),
    Threshold("broken-kl", "kl_k3", 0.1, "high", "fail", "seen in https://prime.test/pull/2714"),
    Threshold("float32-noise", "max_abs_delta", 1e-3, "high", "fail", "ours"),
)
#: What a page must show as text and never as markup.
_HOSTILE = "<script>alert('x')</script>&\"\x1b[31m[red]"


def _samples(noise: float = 1e-3, *, offset: float = 0.0, tail: float = 0.0, seed: int = 0, rows: int = 12) -> list[Sample]:
    """Samples whose trainer differs by noise, by a constant offset, and by a tail that grows with the position."""
    draw = random.Random(seed)  # noqa: S311  # noise
    found = []
    for _ in range(rows):
        rollout = tuple(-draw.expovariate(0.6) for _ in range(40))
        trainer = tuple(
            value - draw.gauss(offset, noise) - tail * place / 40 * draw.random() for place, value in enumerate(rollout)
        )
        found.append(Sample(prompt=(1, 2, 3), tokens=tuple(range(40)), rollout=rollout, trainer=trainer))
    return found


def _result(name: str, rows: list[Sample], **fields: Any) -> Result:
    """A measured scenario."""
    found = measured(rows, decode=lambda tokens: " ".join(f"t{token}" for token in tokens))
    title = fields.pop("title", f"what {name} asks")
    return Result(
        scenario=name,
        title=title,
        seconds=12.5,
        metrics=found.metrics,
        verdicts=judge(found.metrics, _THRESHOLDS),
        by_position=found.by_position,
        by_probability=found.by_probability,
        histogram=found.histogram,
        worst=found.worst,
        **fields,
    )


def _report(**fields: Any) -> Report:
    """A run in which raw logprobs and a kept KV cache break parity, with its ladder."""
    raw = _result("temperature", _samples(1e-5, offset=0.35, seed=2), title="sampled at temperatures other than 1")
    stale = _result("in-flight-kept", _samples(1e-5, tail=0.8, seed=3), notes={"tokens under the new weights": 640, "of": 960})
    results = (
        _result("cold-start", _samples(1e-5, seed=1), title="as the run begins, before anything was updated"),
        raw,
        _result("top-p-top-k", _samples(4e-3, seed=4)),
        _result("decode-prefill", _samples(1e-6, seed=5)),
        _result("prefix-cache", _samples(2e-5, seed=6)),
        _result("long-context", _samples(3e-5, seed=7)),
        Result(scenario="data-parallel", title="every rank", status="skipped", reason="engine.data_parallel_size is 1"),
        _result("after-refit", _samples(2e-5, seed=8)),
        _result("in-flight-cleared", _samples(2e-5, seed=9), gates=False),
        stale,
        Result(scenario="sleep-wake", title="after sleep and wake", status="failed", reason="EngineDiedError: signal 9"),
    )
    cured = _result("temperature", _samples(1e-5, seed=2))
    cleared = _result("in-flight-kept", _samples(1e-5, seed=3))
    ladder = (
        Step(setting="engine.enforce_eager", before=True, after=False, how="restart", results=(raw,)),
        Step(
            setting="engine.logprobs_mode", before="raw_logprobs", after="processed_logprobs", how="restart", results=(cured,)
        ),
        Step(setting="refit.clear_cache", before=False, after=True, how="refit", results=(cleared,)),
        Step(
            setting="train.head_dtype", before=None, after="float32", how="rescore",
            results=(_result("cold-start", _samples(5e-3, seed=1)),),
        ),
        Step(setting="engine.enable_prefix_caching", before=True, after=False, how="restart", results=(raw,)),
        Step(setting="engine.kv_cache_dtype", before=None, after="fp8", how="restart", error="EngineStartError: no fp8"),
    )  # fmt: skip
    attributions = (
        Attribution(
            scenario="temperature", metric="mean_abs_delta", setting="engine.logprobs_mode", before="raw_logprobs",
            after="processed_logprobs", value_before=raw.metrics["mean_abs_delta"], value_after=cured.metrics["mean_abs_delta"],
            restores=("temperature",),
            quirks=(
                Coverage(
                    id="rollout-logprobs-processed", state="disabled", because="you disabled it", switch="remove --disable"
                ),
            ),
        ),
        Attribution(
            scenario="in-flight-kept", metric="max_abs_delta", setting="refit.clear_cache", before=False, after=True,
            value_before=stale.metrics["max_abs_delta"], value_after=cleared.metrics["max_abs_delta"],
            restores=("in-flight-kept",), skeleton=_SKELETON,
        ),
        Attribution(
            scenario="cold-start", metric="max_abs_delta", setting="train.head_dtype", before=None, after="float32",
            value_before=results[0].metrics["max_abs_delta"], value_after=ladder[3].results[0].metrics["max_abs_delta"],
            worsens=("cold-start",),
        ),
    )  # fmt: skip
    values: dict[str, Any] = {
        "date": "2026-11-21T20:00:00+00:00",
        "model": "tiny-qwen3",
        "model_type": "qwen3",
        "platform": "cpu",
        "versions": {"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.19.0", "model-quirks": "0.1.0"},
        "settings": {"engine.dtype": "float32", "engine.logprobs_mode": "raw_logprobs", "refit.clear_cache": False,
                     "sampling.temperature": 0.7, "train.dtype": None},
        "active_quirks": ("v1-runtime", "cpu-tied-head-refit"),
        "plan": "0123456789abcdef0123456789abcdef",
        "profile": "float32",
        "results": results,
        "ladder": ladder,
        "attributions": attributions,
        "warnings": ("the prompts are built in",),
    }  # fmt: skip
    return Report(**{**values, **fields})


def _sound(**fields: Any) -> Report:
    """A run in which parity holds, without a ladder."""
    return _report(results=(_result("cold-start", _samples(1e-6)),), ladder=(), attributions=(), **fields)


def _crowded() -> Report:
    """A run with a ladder of 20 steps, some with names and values that are long."""
    base = _report()
    more = tuple(
        Step(setting=f"engine.vllm_kwargs.some_setting_number_{number}", before=None, after=[number] * 12, how="restart",
             results=(base.results[1],))
        for number in range(14)
    )  # fmt: skip
    return _report(ladder=(*base.ladder, *more))


def _broken_numbers() -> Report:
    """A run whose figures are not finite, whose breakdowns are empty, and whose texts are hostile."""
    bad = _samples(1e-3)[0].model_copy(update={"tokens": (1, 2), "rollout": (-1.0, -math.inf), "trainer": (-1.0, -1.0)})
    some = _result("cold-start", [bad], title=_HOSTILE, notes={_HOSTILE: _HOSTILE})
    odd = some.model_copy(
        update={
            "scenario": f"odd {_HOSTILE}",
            "metrics": {**some.metrics, "mean_abs_delta": math.nan, "max_abs_delta": math.inf, "acme": -math.inf},
            "by_position": (),
            "by_probability": (),
            "histogram": None,
            "worst": (),
            "verdicts": judge({"mean_abs_delta": math.nan, "max_abs_delta": math.inf}, _THRESHOLDS),
        }
    )
    nothing = _result("empty", [])
    return _report(
        model=_HOSTILE,
        versions={_HOSTILE: _HOSTILE},
        settings={_HOSTILE: _HOSTILE},
        active_quirks=(_HOSTILE,),
        warnings=(_HOSTILE,),
        results=(some, odd, nothing, Result(scenario="x", title="", status="failed", reason=_HOSTILE)),
        ladder=(
            Step(setting=_HOSTILE, before=_HOSTILE, after=_HOSTILE, how="restart", error=_HOSTILE),
            Step(setting="engine.dtype", before=None, after="float32", how="restart", results=(odd,)),
            Step(setting="engine.seed", before=None, after=1, how="restart"),
        ),
        attributions=(
            Attribution(
                scenario=odd.scenario, metric="max_abs_delta", setting="engine.dtype", before=None, after="float32",
                value_before=math.inf, value_after=math.nan, restores=(odd.scenario,), skeleton=_HOSTILE,
                quirks=(Coverage(id=_HOSTILE, state=_HOSTILE, because=_HOSTILE, switch=_HOSTILE),),
            ),
        ),
    )  # fmt: skip


@pytest.fixture
def make_report() -> Callable[..., Report]:
    """Makes the faulty report with other values for some of its fields."""
    return _report


@pytest.fixture
def make_result() -> Callable[..., Result]:
    """Makes the result of a scenario with noise of a given size."""
    return lambda name, noise=1e-6, **fields: _result(name, _samples(noise), **fields)


@pytest.fixture(scope="session")
def faulty() -> Report:
    """Raw logprobs and a kept KV cache break parity; the ladder says so."""
    return _report()


@pytest.fixture(scope="session")
def sound() -> Report:
    """Parity holds; no setting was tried."""
    return _sound()


@pytest.fixture(scope="session")
def crowded() -> Report:
    """11 scenarios and 20 settings that were tried."""
    return _crowded()


@pytest.fixture(scope="session")
def hostile() -> Report:
    """Figures that are not finite, breakdowns that are empty, and markup and terminal codes in every text."""
    return _broken_numbers()


@pytest.fixture
def hostile_text() -> str:
    """The markup and terminal codes in it."""
    return _HOSTILE
