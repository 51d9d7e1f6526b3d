"""With sleep mode, vLLM before 0.27 makes the KV cache larger than the memory that is left for it.

What happens: an engine with sleep mode runs out of memory while it starts, or when it is woken up beside a trainer, where the
same engine without sleep mode fits: in vllm-project/vllm#40256 the KV cache is 5.16 GiB with sleep mode and 3.17 GiB without.
vLLM counts the memory that is not PyTorch's as what the GPU has in use less what PyTorch has reserved. With sleep mode weights
come from an allocator of vLLM, which gives memory back without PyTorch's knowledge (vllm-project/vllm#37111). NeMo RL pins the
size in a recipe (NVIDIA-NeMo/RL#3280).

When it can go: when vLLM 0.26 is no longer supported. From 0.27.0 on vLLM reads the memory in use from the GPU. It was not
measured by us; the sizes are those of the reports.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, no, platform, report, setting, unknown, yes

_SLEEP, _SIZE = "engine.enable_sleep_mode", "engine.kv_cache_memory_bytes"
_ASLEEP = {_SLEEP: True}

QUIRK = Quirk(
    id="sleep-kv-cache-size",
    title="With sleep mode the KV cache is larger than the memory that is left for it",
    match=setting(_SLEEP).is_true() & platform("cuda") & ~setting(_SIZE).is_set(),
    affected=Affected("vllm", introduced="0.17.0", fixed="0.27.0"),
    adjustments=Advise(
        f"this vLLM counts too little memory as used in sleep mode, and makes the KV cache too large: set {_SIZE}, for example "
        'to "Available KV cache memory" in the log of an engine without sleep mode'
    ),
    severity=Severity.CRASH,
    references=[
        report("vllm-project/vllm#40256"),
        report("vllm-project/vllm/pull/37111"),
        report("vllm-project/vllm/pull/32947"),
        report("NVIDIA-NeMo/RL/pull/3280"),
    ],
    evidence=StaticProbe("vllm.utils.mem_utils", r"result\.total_consumed = ", found_means_affected=False),
    examples=[
        yes("qwen3", _ASLEEP, vllm="0.26.0", platform="cuda", advises=_SIZE),
        no("qwen3", {**_ASLEEP, _SIZE: 2**34}, vllm="0.26.0", platform="cuda"),
        no("qwen3", _ASLEEP, vllm="0.27.0", platform="cuda"),
        no("qwen3", _ASLEEP, vllm="0.16.0", platform="cuda"),
        no("qwen3", vllm="0.26.0", platform="cuda"),
        unknown("qwen3", _ASLEEP, platform="cuda"),
    ],
)
