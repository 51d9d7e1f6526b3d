"""LoRA on a MoE model whose experts are shared among ranks: what vLLM does not support ends the engine while it starts.

What happens: an assertion ends every rank after the weights were loaded. Before vLLM 0.21 LoRA has no expert parallelism ("EP
support for Fused MoE LoRA is not implemented yet"). From 0.21 on it has (vllm-project/vllm#40867), but not with
``fully_sharded_loras``, and with the exchange ``allgather_reducescatter`` alone.

When it can go: the assertions of today when ``FusedMoEWithLoRA`` takes these combinations. Read in 0.16.0, 0.20.0, 0.21.0,
0.24.0 and 0.33.0.
"""

from quirks_core import Affected, Kind, Quirk, Refuse, Severity, StaticProbe, no, package, report, setting, unknown, yes
from quirks_plugins.conditions import DP, TP, expert_flag, mixture
from quirks_plugins.runs import QWEN3_MOE, parallel

_LORA, _EXCHANGE = "engine.enable_lora", "engine.all2all_backend"
_EP = {_LORA: True, **parallel(tp=2, flag=True)}
_unsupported = package("vllm", fixed="0.21.0")
_sharded = setting("engine.fully_sharded_loras").is_true()
_other_exchange = setting(_EXCHANGE).is_set() & ~setting(_EXCHANGE).one_of("allgather_reducescatter")

QUIRK = Quirk(
    id="lora-expert-parallel",
    title="LoRA on experts that are shared among ranks: an assertion ends the engine while it starts",
    kind=Kind.RULE,
    match=setting(_LORA).is_true()
    & mixture
    & expert_flag
    & (TP.above(1) | DP.above(1))
    & (_unsupported | _sharded | (_other_exchange & DP.above(1))),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=[
        Refuse(
            "this vLLM has no LoRA for experts that are shared among ranks",
            "set engine.enable_expert_parallel: false, or install vLLM 0.21 or newer",
            when=_unsupported,
        ),
        Refuse(
            "LoRA's ranks cannot be sharded where the experts are",
            "set engine.fully_sharded_loras: false, or engine.enable_expert_parallel: false",
            when=_sharded & ~_unsupported,
        ),
        Refuse(
            "LoRA on shared experts works with one way of exchange only",
            f"set {_EXCHANGE}: allgather_reducescatter, or leave it open",
            when=_other_exchange & DP.above(1) & ~_unsupported,
        ),
    ],
    severity=Severity.CRASH,
    crash="Fused MoE LoRA (is not implemented|with EP currently only supports|does not support)|EP support for Fused MoE LoRA",
    references=[report("vllm-project/vllm/pull/38021"), report("vllm-project/vllm/pull/40867")],
    evidence=StaticProbe("vllm.lora.layers.fused_moe", r"(EP support for Fused MoE LoRA|Fused MoE LoRA with EP)"),
    examples=[
        yes(QWEN3_MOE, _EP, vllm="0.20.0", refuses="vLLM 0.21"),
        yes(QWEN3_MOE, {**_EP, "engine.fully_sharded_loras": True}, vllm="0.33.0", refuses="engine.fully_sharded_loras"),
        yes(QWEN3_MOE, {**_EP, **parallel(dp=2), _EXCHANGE: "deepep_low_latency"}, vllm="0.32.0", refuses=_EXCHANGE),
        no(QWEN3_MOE, _EP, vllm="0.32.0"),
        no(QWEN3_MOE, parallel(tp=2, flag=True), vllm="0.20.0"),
        unknown(QWEN3_MOE, _EP),
    ],
)
