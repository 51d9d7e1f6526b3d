"""Sleep mode and PyTorch's expandable segments: what vLLM's memory pool makes of the allocator's settings, one row each.

What happens: PyTorch cannot fill a memory pool from expandable segments (vllm-project/vllm#14189). Trainers ask for them, and
their engines inherit the variable. ``CuMemAllocator`` refused to start with them, and from 0.20.1 on turns them off while it
fills its pool (vllm-project/vllm#40812), until 0.30 under one name of the variable alone. Until then it also drops the other
settings of the allocator beside them (vllm-project/vllm#54351), which no quirk reports.

When it can go: row by row, when its last affected vLLM is no longer supported. ``cumem.py`` was read in 0.16.0, 0.19.1, 0.20.0,
0.20.2, 0.21.0, 0.30.0, 0.31.0 and 0.33.0; no engine with a GPU was run.
"""

from quirks_core import Affected, Default, Quirk, Refuse, RunContext, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import environment, setting

_READ, _ALIAS = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_ASLEEP = {"engine.enable_sleep_mode": True}
_MODULE, _WANTED = "vllm.device_allocator.cumem", "expandable_segments:True"
_SEGMENTS, _MORE = {_READ: _WANTED}, {_READ: f"{_WANTED},max_split_size_mb:128"}
_asleep, _segments = setting("engine.enable_sleep_mode").is_true(), environment(_READ).matches(_WANTED)

SLEEP_EXPANDABLE_SEGMENTS = Quirk(
    id="sleep-expandable-segments",
    title="An engine with sleep mode does not start where PYTORCH_CUDA_ALLOC_CONF asks for expandable segments",
    match=_asleep & _segments,
    affected=Affected("vllm", introduced="0.16.0", fixed="0.20.1"),
    adjustments=Refuse(
        f"sleep mode of this vLLM does not start with {_WANTED} in {_READ}",
        f"take it out of env.{_READ} of the engine (the trainer may keep it), or install vLLM 0.20.1 or newer",
    ),
    severity=Severity.CRASH,
    crash="Expandable segments are not compatible with memory pool",
    references=[report("OpenRLHF/OpenRLHF/pull/1274"), report("vllm-project/vllm/pull/14189")],
    evidence=StaticProbe(_MODULE, r'assert "expandable_segments:True" not in conf'),
    examples=[
        yes("qwen2", _ASLEEP, env=_MORE, vllm="0.19.1", platform="cuda", refuses="0.20.1"),
        no("qwen2", _ASLEEP, env=_SEGMENTS, vllm="0.20.1", platform="cuda"),
        no("qwen2", _ASLEEP, env={_READ: "max_split_size_mb:128"}, vllm="0.19.1"),
        no("qwen2", env=_SEGMENTS, vllm="0.19.1"),
        unknown("qwen2", _ASLEEP, env=_SEGMENTS),
    ],
)


def _same(context: RunContext) -> str:
    return str(context.fact(f"env.{_ALIAS}"))


# Memory is then not given back ("Sleep mode freed 0.00 GiB"), or the pool is corrupted. PyTorch takes either name, the older
# one first. From 0.31.0 on vLLM asks the allocator, and the environment by all names (``device_allocator/alloc_conf.py``).
ALLOCATOR_ALIAS = Quirk(
    id="allocator-alias",
    title="vLLM's sleep mode does not see expandable segments under PyTorch's newer name of the variable",
    match=_asleep & environment(_ALIAS).matches(_WANTED) & ~environment(_READ).is_set(),
    affected=Affected("vllm", introduced="0.20.1", fixed="0.31.0"),
    adjustments=Default(
        f"env.{_READ}", _same, reason="this vLLM reads that name alone, and must turn expandable segments off for its pool"
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm/pull/54351"), report("huggingface/trl/pull/5794")],
    evidence=StaticProbe(_MODULE, r'"expandable_segments:True" in conf'),
    examples=[
        yes("qwen2", _ASLEEP, env={_ALIAS: _WANTED}, vllm="0.30.0", gives={f"env.{_READ}": _WANTED}),
        yes("qwen2", _ASLEEP, env={_ALIAS: _WANTED}, vllm="0.20.1", purpose="serve"),
        no("qwen2", _ASLEEP, env={_ALIAS: _WANTED}, vllm="0.32.0"),
        no("qwen2", _ASLEEP, env={_ALIAS: _WANTED, _READ: "max_split_size_mb:128"}, vllm="0.30.0"),
        no("qwen2", env={_ALIAS: _WANTED}, vllm="0.30.0"),
        unknown("qwen2", _ASLEEP, env={_ALIAS: _WANTED}),
    ],
)
