"""Engines of several proofs run on one GPU at the same time."""

from quirks_core import Default, Quirk, Severity, platform, report

QUIRK = Quirk(
    id="gpu-share/small-engines",
    title="An engine reserves nine tenths of the GPU's memory, and a second one does not start",
    flag="runtime",
    match=platform("cuda"),
    adjustments=[
        Default("engine.gpu_memory_utilization", 0.08),
        Default("engine.kv_cache_memory_bytes", 1 << 30),  # not measured: what others take meanwhile would count as its own
    ],
    severity=Severity.SLOW,
    references=report("https://docs.vllm.ai/en/latest/configuration/conserving_memory.html"),
)
