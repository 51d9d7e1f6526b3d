"""Sleep mode before vLLM 0.31: expandable segments under PyTorch's newer name of the variable.

What happens: memory is not given back ("Sleep mode freed 0.00 GiB"), or the memory pool is corrupted, because PyTorch cannot
fill it from expandable segments (vllm-project/vllm#14189). Trainers ask for them, and their engines inherit the variable. vLLM
turns them off while it fills its pool (vllm-project/vllm#40812), and looks at ``PYTORCH_CUDA_ALLOC_CONF`` alone. PyTorch takes
either name, the older one first. Until 0.30 vLLM also drops the other settings of the allocator beside them
(vllm-project/vllm#54351), which no quirk reports.

When it can go: when vLLM 0.30 is no longer supported. From 0.31.0 on vLLM asks the allocator, and the environment by all names
(``device_allocator/alloc_conf.py``). Before 0.20.1 it refuses to start with the older name, and says why. ``cumem.py`` was read
in 0.20.0, 0.20.2, 0.21.0, 0.30.0, 0.31.0 and 0.33.0; no engine with a GPU was run.
"""

from quirks_core import Affected, Default, Quirk, RunContext, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import environment, setting

_READ, _ALIAS = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_ASLEEP = {"engine.enable_sleep_mode": True}
_WANTED = "expandable_segments:True"


def _same(context: RunContext) -> str:
    return str(context.fact(f"env.{_ALIAS}"))


QUIRK = Quirk(
    id="allocator-alias",
    title="vLLM's sleep mode does not see expandable segments under PyTorch's newer name of the variable",
    match=setting("engine.enable_sleep_mode").is_true() & environment(_ALIAS).matches(_WANTED) & ~environment(_READ).is_set(),
    affected=Affected("vllm", introduced="0.20.1", fixed="0.31.0"),
    adjustments=Default(
        f"env.{_READ}", _same, reason="this vLLM reads that name alone, and must turn expandable segments off for its pool"
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm/pull/54351"), report("huggingface/trl/pull/5794")],
    evidence=StaticProbe("vllm.device_allocator.cumem", r'"expandable_segments:True" in conf'),
    examples=[
        yes("qwen2", _ASLEEP, env={_ALIAS: _WANTED}, vllm="0.30.0", gives={f"env.{_READ}": _WANTED}),
        yes("qwen2", _ASLEEP, env={_ALIAS: _WANTED}, vllm="0.20.1", purpose="serve"),
        no("qwen2", _ASLEEP, env={_ALIAS: _WANTED}, vllm="0.32.0"),
        no("qwen2", _ASLEEP, env={_ALIAS: _WANTED, _READ: "max_split_size_mb:128"}, vllm="0.30.0"),
        no("qwen2", env={_ALIAS: _WANTED}, vllm="0.30.0"),
        unknown("qwen2", _ASLEEP, env={_ALIAS: _WANTED}),
    ],
)
