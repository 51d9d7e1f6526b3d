"""Data parallelism and sleep before vLLM 0.24: the engine dies between ``wake_up(["weights"])`` and ``wake_up(["kv_cache"])``.

What happens: "CUDA error: an illegal memory access was encountered". Trainers wake the weights, send the new ones, and wake the
KV cache last. Ranks of a data-parallel group that have nothing to do run an empty batch to stay in step
(``execute_dummy_batch``), also then, and it reads the cache that still sleeps. From 0.24 on they ask first.

When it can go: when vLLM 0.23 is no longer supported. Read in 0.22.0, 0.23.0, 0.24.0 and 0.33.0; no CPU engine sleeps.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, fix, no, report, setting, unknown, yes
from quirks_plugins.conditions import DP, mixture
from quirks_plugins.runs import QWEN3_MOE

_SLEEP = "engine.enable_sleep_mode"
_TWO = {"engine.data_parallel_size": 2, _SLEEP: True}

QUIRK = Quirk(
    id="dp-partial-wake",
    title="Data-parallel ranks read a KV cache that still sleeps while weights are sent",
    match=mixture & DP.above(1) & setting(_SLEEP).is_true(),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.24.0"),
    adjustments=Advise(
        'between wake_up(tags=["weights"]) and wake_up(tags=["kv_cache"]) idle data-parallel ranks of this vLLM read the cache '
        "that still sleeps, and the engine dies: wake both at once, or install vLLM 0.24 or newer"
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm#44395"), fix("vllm-project/vllm/pull/44483")],
    evidence=StaticProbe("vllm.v1.engine.core", r"if not self\.model_executor\.is_sleeping", found_means_affected=False),
    examples=[
        yes(QWEN3_MOE, _TWO, vllm="0.23.0", advises="0.24"),
        yes(QWEN3_MOE, _TWO, vllm="0.16.0", purpose="serve"),
        no(QWEN3_MOE, _TWO, vllm="0.24.0"),
        no(QWEN3_MOE, {_SLEEP: True}, vllm="0.23.0"),
        no(QWEN3_MOE, {"engine.data_parallel_size": 2}, vllm="0.23.0"),
        no("qwen3", _TWO, vllm="0.23.0"),
        unknown(QWEN3_MOE, _TWO),
    ],
)
