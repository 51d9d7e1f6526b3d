"""Rollouts: at each step the scheduler looks for KV cache blocks for every running request, which needs one in 16 steps.

What happens: a small model with many requests generates fewer tokens per second than its GPU could. On an H200 (vLLM 0.26.0, a
Qwen3-1.7B shape, 256 requests) the GPU is idle for more than a third of each step and waits for the engine core, which spends
a fifth of its time in ``KVCacheManager.allocate_slots``. A request has room for 16 tokens in a block, and usually gets one
token per step, but vLLM frees, counts, allocates and caches blocks at every step. The change that an engineer proposed
upstream was not merged (vllm-project/vllm#29206); it measured 17 % of the time.

When it can go: when vLLM returns early itself. The quirk does nothing on versions after 0.33.0, whose source has not been read
yet, because a run should not be refused for the sake of speed.
"""

from quirks_core import Affected, Kind, Patch, Quirk, Severity, StaticProbe, no, package, purpose, report, unknown, yes
from quirks_plugins.conditions import our_worker

#: A run of our own worker.
_OURS = {"engine.generate_from_dummy": False}

QUIRK = Quirk(
    id="decode-slots",
    title="vLLM's scheduler looks for KV cache blocks for every running request at every step",
    kind=Kind.FEATURE,
    match=our_worker & purpose("rollout") & package("vllm", fixed="0.33.1"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        wrapper="quirks_plugins.throughput.decode_slots_patches:wrap_allocate_slots",
        expects=("17527ea1ffe2", "f9b68fc78c89", "0b4514cbcc14", "a6ece9177eb6"),
        reason="no setting makes the scheduler skip requests whose blocks have room",
    ),
    severity=Severity.SLOW,
    references=report("vllm-project/vllm/pull/29206"),
    evidence=StaticProbe(
        "vllm.v1.core.kv_cache_manager",
        r"def allocate_slots\((?:(?!\n    def |return self\.empty_kv_cache_blocks)[\s\S])*self\.coordinator\.cache_blocks\(",
    ),
    examples=[
        yes("qwen3", _OURS, vllm="0.32.0"),
        yes("qwen3_moe", _OURS, vllm="0.26.0", platform="cuda"),
        *(yes("qwen3", _OURS, vllm=version) for version in ("0.30.0", "0.31.0", "0.33.0")),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", _OURS, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", _OURS, vllm="0.25.1"),
        no("qwen3", _OURS, vllm="0.33.1"),
        unknown("qwen3", _OURS),
    ],
    cost="nothing that was measured",
)
