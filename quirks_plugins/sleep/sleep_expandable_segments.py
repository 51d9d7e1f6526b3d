"""Sleep mode with PyTorch's expandable segments: up to vLLM 0.20.0 the engine does not start.

What happens: ``CuMemAllocator`` asserts that ``PYTORCH_CUDA_ALLOC_CONF`` does not hold ``expandable_segments:True``, because
PyTorch cannot use both memory pools and such segments (vllm-project/vllm#14189). Trainers set the variable for themselves, and
their engines inherit it. From 0.20.1 on vLLM turns the segments off while it fills its pool (vllm-project/vllm#40812).

When it can go: when vLLM 0.20.0 is no longer supported. Read in 0.16.0, 0.19.1, 0.20.0 and 0.20.2. The newer name of the
variable is `allocator-alias`.
"""

from quirks_core import Affected, Quirk, Refuse, Severity, StaticProbe, fix, no, report, unknown, yes
from quirks_core.declaration.match import environment, setting

_NAME = "PYTORCH_CUDA_ALLOC_CONF"
_ON = {_NAME: "expandable_segments:True,max_split_size_mb:128"}
_ASLEEP = {"engine.enable_sleep_mode": True}

QUIRK = Quirk(
    id="sleep-expandable-segments",
    title="An engine with sleep mode does not start where PYTORCH_CUDA_ALLOC_CONF asks for expandable segments",
    match=setting("engine.enable_sleep_mode").is_true() & environment(_NAME).matches("expandable_segments:True"),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.20.1"),
    adjustments=Refuse(
        f"sleep mode of this vLLM does not start with expandable_segments:True in {_NAME}",
        f"take it out of env.{_NAME} of the engine (the trainer may keep it), or install vLLM 0.20.1 or newer",
    ),
    severity=Severity.CRASH,
    crash="Expandable segments are not compatible with memory pool",
    references=[
        report("OpenRLHF/OpenRLHF/pull/1274"),
        report("vllm-project/vllm/pull/14189"),
        fix("vllm-project/vllm/pull/40812"),
    ],
    evidence=StaticProbe("vllm.device_allocator.cumem", r'assert "expandable_segments:True" not in conf'),
    examples=[
        yes("qwen2", _ASLEEP, env=_ON, vllm="0.19.1", platform="cuda", refuses="0.20.1"),
        no("qwen2", _ASLEEP, env=_ON, vllm="0.20.1", platform="cuda"),
        no("qwen2", _ASLEEP, env={_NAME: "max_split_size_mb:128"}, vllm="0.19.1"),
        no("qwen2", env=_ON, vllm="0.19.1"),
        unknown("qwen2", _ASLEEP, env=_ON),
    ],
)
