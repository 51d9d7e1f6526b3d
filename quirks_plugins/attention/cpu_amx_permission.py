"""A CPU with AMX, in bfloat16: a worker of vLLM may die of SIGILL in its first attention ("exit code: -4").

What happens: Linux lets a process use AMX's tiles once it has asked for them (``arch_prctl``). Since vLLM has its own attention
for AMX, nothing in vLLM asks: a worker relies on oneDNN, which asks when it multiplies with tiles. With a tiny Qwen3 (vLLM
0.32.0, torch 2.13.0, one Xeon with AMX, Linux 6.18) three of five starts died at ``tilezero``; of five whose processes asked
first, none did. The choice of the kernel (``_get_attn_isa``) is where the quirk asks, in each worker.

When it can go: when vLLM calls ``torch.cpu._init_amx`` itself. The probe reads that in the source; a paired run would fail by
chance alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, platform
from quirks_plugins.conditions import ENGINE_COMPUTES

_PATCHES = "_get_attn_isa"

QUIRK = Quirk(
    id="cpu-amx-permission",
    title="A worker on a CPU with AMX dies of SIGILL, because nothing asked Linux for AMX's tiles",
    match=platform("cpu") & Fact("platform.cpu.amx").is_true() & ENGINE_COMPUTES.one_of("bfloat16"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.v1.attention.backends.cpu_attn:_get_attn_isa",
        wrapper="quirks_plugins.attention.cpu_amx_permission:wrap_get_attn_isa",
        expects=("222c3249eddf", "f36eb4e47ad5"),
        reason="no setting has a process ask for the tiles",
    ),
    severity=Severity.CRASH,
    crash="exit code: -4",
    references=report("https://docs.kernel.org/arch/x86/xstate.html"),
    evidence=StaticProbe("vllm.v1.attention.backends.cpu_attn", r'\A(?![\s\S]*_init_amx)[\s\S]*return "amx"'),
    examples=[
        yes("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="amx", patches=_PATCHES),
        no("qwen3", {"engine.dtype": "float32"}, vllm="0.32.0", platform="cpu", cpu="amx"),
        no("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu", cpu="avx512"),
        unknown("qwen3", {"engine.dtype": "bfloat16"}, vllm="0.32.0", platform="cpu"),
    ],
    cost="nothing: a system call per worker",
)


def wrap_get_attn_isa(original: Callable[..., str]) -> Callable[..., str]:
    """Make a process that will use AMX ask for it."""

    @wraps(original)
    def _get_attn_isa(*args: Any, **kwargs: Any) -> str:
        import torch

        isa = original(*args, **kwargs)
        if isa == "amx":
            torch.cpu._init_amx()
        return isa

    return _get_attn_isa
