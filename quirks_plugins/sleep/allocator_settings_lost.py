"""Sleep mode beside expandable segments: vLLM before 0.31 drops all other settings of PyTorch's allocator.

What happens: with ``expandable_segments:True,max_split_size_mb:128`` the engine fragments its memory as if the second setting
were not there. To fill its pool, vLLM hands the allocator "expandable_segments:False", which replaces all settings, and then
"expandable_segments:True" alone (``CuMemAllocator.use_memory_pool``). From 0.31.0 on it keeps the rest.

When it can go: when vLLM 0.30 is no longer supported. Read in 0.20.2, 0.21.0, 0.30.0 and 0.31.0; no engine with a GPU was run.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import environment, setting

_NAME = "PYTORCH_CUDA_ALLOC_CONF"
_ON = {_NAME: "expandable_segments:True,max_split_size_mb:128"}
_ASLEEP = {"engine.enable_sleep_mode": True}

QUIRK = Quirk(
    id="allocator-settings-lost",
    title="With sleep mode and expandable segments, vLLM drops the other settings of PyTorch's allocator",
    match=setting("engine.enable_sleep_mode").is_true()
    & environment(_NAME).matches("expandable_segments:True")
    & environment(_NAME).matches(","),
    affected=Affected("vllm", introduced="0.20.1", fixed="0.31.0"),
    adjustments=Advise(
        f"this vLLM keeps expandable_segments:True of {_NAME} and drops the rest: leave expandable segments out if the "
        "others matter more, or install vLLM 0.31 or newer"
    ),
    severity=Severity.NOISE,
    references=report("vllm-project/vllm/pull/54351"),
    evidence=StaticProbe("vllm.device_allocator.cumem", r'_set_allocator_settings\("expandable_segments:True"\)'),
    examples=[
        yes("qwen2", _ASLEEP, env=_ON, vllm="0.30.0", advises="0.31"),
        no("qwen2", _ASLEEP, env={_NAME: "expandable_segments:True"}, vllm="0.30.0"),
        no("qwen2", _ASLEEP, env=_ON, vllm="0.31.0"),
        no("qwen2", env=_ON, vllm="0.30.0"),
        unknown("qwen2", _ASLEEP, env=_ON),
    ],
)
