"""Speculative decoding over pipeline stages with synchronous scheduling generates wrong tokens.

What happens: with ``pipeline_parallel_size`` above 1, a ``speculative_config`` and ``async_scheduling: false``, the engine
generates wrong tokens, or ends with a CUDA error. On the V2 model runner a request may be scheduled again only when its sampled
token has come back from the last stage. ``Scheduler`` obeys that (``next_decode_eligible_step``), and only ``AsyncScheduler``
sets it. Recipes switch asynchronous scheduling off because it once was the cautious choice.

When it can go: with vllm-project/vllm#52179, which is open. It shows only on two GPUs, and this project has not run it.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, fix, no, platform, report, setting, unknown, yes
from quirks_plugins.conditions import PP, v2_model_runner

_SLOT = "engine.async_scheduling"
_DRAFT = {"engine.speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}, "engine.pipeline_parallel_size": 2}

QUIRK = Quirk(
    id="pipeline-draft-scheduling",
    title="Speculative decoding over pipeline stages generates wrong tokens with synchronous scheduling",
    match=platform("cuda", "rocm") & v2_model_runner & setting("engine.speculative_config").is_set() & PP.above(1),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Require(
        _SLOT,
        True,
        reason="the synchronous scheduler runs a request again before its sampled token has come back from the last stage",
        remedy=f"set {_SLOT}: true, or engine.pipeline_parallel_size: 1",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#52071"), fix("vllm-project/vllm/pull/52179")],
    evidence=StaticProbe("vllm.v1.core.sched.scheduler", r"if self\.current_step < request\.next_decode_eligible_step:"),
    examples=[
        yes("qwen3", _DRAFT, vllm="0.32.0", platform="cuda", gives={_SLOT: True}),
        yes("qwen3", {**_DRAFT, _SLOT: False}, vllm="0.33.0", platform="cuda", refuses=_SLOT),
        no("qwen3", _DRAFT, vllm="0.29.0", platform="cuda"),  # EAGLE3 over stages: the V1 runner
        no("qwen3", {**_DRAFT, "engine.pipeline_parallel_size": 1}, vllm="0.32.0", platform="cuda"),
        no("qwen3", {"engine.pipeline_parallel_size": 2}, vllm="0.32.0", platform="cuda"),
        unknown("qwen3", _DRAFT, platform="cuda"),
    ],
)
