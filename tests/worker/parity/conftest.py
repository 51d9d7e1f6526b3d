"""Reports made by hand, for the tests of everything that shows one."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from worker.lab.parity.metrics import measured
from worker.lab.parity.records import Attribution, Coverage, Report, Result, Sample, Step
from worker.lab.parity.thresholds import Threshold, judge

#: Limits of our own, so that these tests do not move with the profiles.
_THRESHOLDS = (
    Threshold("all-finite", "nonfinite", 0, "high", "fail", "ours: a logprob is a number"),
    Threshold("nemo-rl-error", "mean_exp_abs_delta", 1.05, "high", "fail", "a guide: https://guide.test/models.html"),
    Threshold("verl-probability-fault", "mean_abs_dprob", 0.01, "high", "fail", "FAQ: https://verl.test/faq.rst"),
    Threshold("verl-kl", "kl_k1", 0.1, "size", "fail", "health check: https://verl.test/health.md"),
    Threshold("in-sync", "mean_abs_delta", 0.02, "high", "warn", "seen in https://trl.test/issues/5312"),
    Threshold("stale-weights", "mean_abs_delta", 0.2, "high", "fail", "seen in https://trl.test/issues/5312"),
    Threshold("healthy-kl", "kl_k3", 0.01, "high", "warn", "seen in https://prime.test/pull/2714"),
    Threshold("broken-kl", "kl_k3", 0.1, "high", "fail", "seen in https://prime.test/pull/2714"),
    Threshold("float32-noise", "max_abs_delta", 1e-3, "high", "fail", "ours"),
)
#: What a page must show as text and never as markup.
HOSTILE = "<script>alert('x')</script>&\"\x1b[31m[red]"


def _result(name: str, noise: float = 1e-6, *, offset: float = 0.0, tail: float = 0.0, seed: int = 0, **fields: Any) -> Result:
    """A scenario whose trainer differs by noise, by a constant offset, and by a tail that grows with the position."""
    draw = random.Random(seed)  # noqa: S311  # noise
    rows = []
    for _ in range(12):
        rollout = tuple(-draw.expovariate(0.6) for _ in range(40))
        trainer = (value - draw.gauss(offset, noise) - tail * at / 40 * draw.random() for at, value in enumerate(rollout))
        rows.append(Sample(prompt=(1, 2, 3), tokens=tuple(range(40)), rollout=rollout, trainer=tuple(trainer)))
    return _of(name, rows, **fields)


def _of(name: str, rows: list[Sample], **fields: Any) -> Result:
    found = measured(rows, decode=lambda tokens: " ".join(f"t{token}" for token in tokens))
    facts = {"title": f"what {name} asks", "seconds": 12.5, "verdicts": judge(found.metrics, _THRESHOLDS), **fields}
    return Result(scenario=name, **found._asdict(), **facts)


def _tried(setting: str, before: Any, after: Any, *results: Result, how: str = "restart", error: str = "") -> Step:
    return Step(setting=setting, before=before, after=after, how=how, results=results, error=error)  # type: ignore[arg-type]


def _moves(step: Step, before: Result, metric: str, **fields: Any) -> Attribution:
    values = {"value_before": before.metrics[metric], "value_after": step.results[0].metrics[metric]}
    facts = step.model_dump(include={"setting", "before", "after"})
    return Attribution(scenario=before.scenario, metric=metric, **facts, **values, **fields)


def _report(**fields: Any) -> Report:
    """A run in which raw logprobs and a kept KV cache break parity, with its ablation."""
    cold, raw = _result("cold-start", 1e-5, seed=1), _result("temperature", 1e-5, offset=0.35, seed=2)
    stale = _result("in-flight-kept", 1e-5, tail=0.8, seed=3, notes={"tokens under the new weights": 640, "of": 960})
    sound = [_result(name, 2e-5) for name in ("decode-prefill", "prefix-cache", "long-context", "after-refit")]
    results = (
        cold, raw, _result("top-p-top-k", 4e-3, seed=4), *sound[:3],
        Result(scenario="data-parallel", title="every rank", status="skipped", reason="engine.data_parallel_size is 1"),
        sound[3], _result("in-flight-cleared", 2e-5, gates=False), stale,
        Result(scenario="sleep-wake", title="after sleep and wake", status="failed", reason="EngineDiedError: signal 9"),
    )  # fmt: skip
    mode = _tried("engine.logprobs_mode", "raw_logprobs", "processed_logprobs", _result("temperature", 1e-5, seed=2))
    cleared = _tried("refit.clear_cache", False, True, _result("in-flight-kept", 1e-5, seed=3))
    head = _tried("train.head_dtype", None, "float32", _result("cold-start", 5e-3, seed=1), how="rescore")
    steps = (
        _tried("engine.enforce_eager", True, False, raw), mode, cleared, head,
        _tried("engine.enable_prefix_caching", True, False, raw),
        _tried("engine.kv_cache_dtype", None, "fp8", error="EngineStartError: no fp8"),
    )  # fmt: skip
    quirk = Coverage(id="rollout-logprobs-processed", state="disabled", because="switched off by --disable")
    attributions = (
        _moves(mode, raw, "mean_abs_delta", restores=("temperature",), quirks=(quirk,)),
        _moves(head, cold, "max_abs_delta", restores=("top-p-top-k",), worsens=("cold-start",)),
        _moves(cleared, stale, "max_abs_delta", restores=("in-flight-kept",)),
    )
    settings = {"engine.dtype": "float32", "refit.clear_cache": False, "sampling.temperature": 0.7, "train.dtype": None}
    values: dict[str, Any] = {
        "date": "2026-11-21T20:00:00+00:00", "model": "tiny-qwen3", "model_type": "qwen3", "platform": "cpu",
        "versions": {"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.19.0", "model-quirks": "0.1.0"},
        "settings": settings, "active_quirks": ("double-bos", "cpu-tied-head-refit"),
        "plan": "0123456789abcdef0123456789abcdef", "profile": "float32",
        "results": results, "steps": steps, "attributions": attributions, "warnings": ("the prompts are built in",),
    }  # fmt: skip
    return Report(**{**values, **fields})


@pytest.fixture(scope="session")
def hostile() -> Report:
    """Figures that are not finite, and markup and terminal codes in every text."""
    bad = Sample(prompt=(1,), tokens=(1, 2), rollout=(-1.0, -math.inf), trainer=(-1.0, -1.0))
    some = _of(HOSTILE, [bad], title=HOSTILE, notes={HOSTILE: HOSTILE})
    figures = {"mean_abs_delta": math.nan, "max_abs_delta": math.inf}
    odd = some.model_copy(update={"metrics": {**some.metrics, **figures}, "verdicts": judge(figures, _THRESHOLDS)})
    step = _tried(HOSTILE, HOSTILE, HOSTILE, odd)
    quirk = Coverage(id=HOSTILE, state=HOSTILE, because=HOSTILE)
    return _report(
        model=HOSTILE,
        versions={HOSTILE: HOSTILE},
        settings={HOSTILE: HOSTILE},
        active_quirks=(HOSTILE,),
        warnings=(HOSTILE,),
        results=(odd, _of("empty", []), Result(scenario="x", title="", status="failed", reason=HOSTILE)),
        steps=(_tried(HOSTILE, HOSTILE, HOSTILE, error=HOSTILE), step),
        attributions=(_moves(step, odd, "max_abs_delta", restores=(odd.scenario,), quirks=(quirk,)),),
    )


@pytest.fixture(scope="session")
def make_report():
    """Makes the faulty report with other values for some of its fields."""
    return _report


@pytest.fixture(scope="session")
def make_result():
    """Makes the result of a scenario with noise of a given size."""
    return _result


@pytest.fixture(scope="session")
def faulty() -> Report:
    """Raw logprobs and a kept KV cache break parity; the ablation says so."""
    return _report()


@pytest.fixture(scope="session")
def sound() -> Report:
    """Parity holds; no setting was tried."""
    return _report(results=(_result("cold-start"),), steps=(), attributions=())
