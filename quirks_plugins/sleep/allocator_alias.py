"""PyTorch's newer name for its allocator's settings, ``PYTORCH_ALLOC_CONF``: vLLM before 0.31 does not read it.

What happens: with expandable segments by that name, sleep mode fills its memory pool from them, which PyTorch does not support:
memory is not given back ("Sleep mode freed 0.00 GiB"), or the pool is corrupted. vLLM turns the segments off for its pool, or
refuses, only where it sees ``PYTORCH_CUDA_ALLOC_CONF``. PyTorch takes either name, the older one first.

When it can go: when vLLM 0.30 is no longer supported. From 0.31.0 on vLLM asks the allocator, and the environment by all its
names (``device_allocator/alloc_conf.py``). Read in 0.16.0 to 0.33.0; no engine with a GPU was run.
"""

from quirks_core import Affected, Default, Quirk, RunContext, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import environment, setting

_ALIAS, _READ = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_ON = {_ALIAS: "expandable_segments:True"}
_ASLEEP = {"engine.enable_sleep_mode": True}


def _same(context: RunContext) -> str:
    return str(context.fact(f"env.{_ALIAS}"))


QUIRK = Quirk(
    id="allocator-alias",
    title="vLLM's sleep mode does not see expandable segments under PyTorch's newer name of the variable",
    match=setting("engine.enable_sleep_mode").is_true()
    & environment(_ALIAS).matches("expandable_segments:True")
    & ~environment(_READ).is_set(),
    affected=Affected("vllm", introduced="0.20.1", fixed="0.31.0"),
    adjustments=Default(
        f"env.{_READ}", _same, reason="this vLLM reads that name alone, and must turn expandable segments off for its pool"
    ),
    severity=Severity.CRASH,
    references=[
        report("vllm-project/vllm/pull/54351"),
        report("huggingface/trl/pull/5794"),
        report("OpenRLHF/OpenRLHF/pull/1274"),
    ],
    evidence=StaticProbe("vllm.device_allocator.cumem", r'"expandable_segments:True" in conf'),
    examples=[
        yes("qwen2", _ASLEEP, env=_ON, vllm="0.30.0", gives={f"env.{_READ}": "expandable_segments:True"}),
        yes("qwen2", _ASLEEP, env=_ON, vllm="0.20.1", purpose="serve"),
        no("qwen2", _ASLEEP, env=_ON, vllm="0.32.0"),
        no("qwen2", _ASLEEP, env={**_ON, _READ: "max_split_size_mb:128"}, vllm="0.30.0"),
        no("qwen2", env=_ON, vllm="0.30.0"),
        unknown("qwen2", _ASLEEP, env=_ON),
    ],
)
