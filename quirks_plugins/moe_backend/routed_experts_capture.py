"""Router replay needs the experts that vLLM chose, and vLLM returns them for some engines only.

What happens: with ``enable_return_routed_experts`` the engine does not start over pipeline stages or with context parallelism,
and from vLLM 0.31.0 on not without a prefix cache. Recipes for router replay (R3) often switch the prefix cache off: NeMo RL's
do, because tokens from the cache had no experts once. Since vllm-project/vllm#45635 the experts of cached tokens are stored by
block, which also needs the V2 model runner. A dense model has no experts to return.

When it can go: never for a dense model; the others when vLLM lifts them. Some KV connectors are refused, too; vLLM names them.
No engine was started with it by us.
"""

from quirks_core import Affected, Kind, Quirk, Refuse, Require, Severity, StaticProbe, fix, no, report, unknown, yes
from quirks_core.declaration.match import package, platform, setting
from quirks_plugins.conditions import PP, dense

_FLAG, _CACHE = "engine.enable_return_routed_experts", "engine.enable_prefix_caching"
_MOE = {"model_type": "qwen3_moe", "num_experts": 8}
_ON = {_FLAG: True}
_by_block = package("vllm", introduced="0.31.0")
_DECODE, _PREFILL = "engine.decode_context_parallel_size", "engine.prefill_context_parallel_size"
_over_context = setting(_DECODE).above(1) | setting(_PREFILL).above(1)
_uncached = _by_block & setting(_CACHE).one_of(False)
_on_cpu = _by_block & platform("cpu")

QUIRK = Quirk(
    id="routed-experts-capture",
    title="vLLM returns routed experts only of MoE models in one pipeline stage, and from 0.31 on only with a prefix cache",
    kind=Kind.RULE,
    match=setting(_FLAG).is_true() & (PP.above(1) | _over_context | _uncached | _on_cpu | dense),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Require(
            _CACHE,
            True,
            reason="vLLM stores the experts of each token by block of the prefix cache",
            remedy=f"leave {_CACHE} out: cached tokens have their experts",
            when=_uncached,
        ),
        Refuse(
            f"{_FLAG}: vLLM returns no experts over pipeline stages",
            "set engine.pipeline_parallel_size: 1, and a larger engine.tensor_parallel_size",
            when=PP.above(1),
        ),
        Refuse(
            f"{_FLAG}: vLLM returns no experts with context parallelism",
            f"set {_DECODE} and {_PREFILL} to 1",
            when=_over_context,
        ),
        Refuse(
            f"{_FLAG}: vLLM's CPU platform has no V2 model runner, which returns the experts",
            f"take a machine with a GPU, vLLM before 0.31, or set {_FLAG}: false",
            when=_on_cpu,
        ),
        Refuse(f"{_FLAG}: a dense model has no experts", f"set {_FLAG}: false", when=dense),
    ],
    severity=Severity.CRASH,
    crash=r"AuxOutput Connector (requires|only supports)|--enable-return-routed-experts is incompatible with",
    references=[report("NVIDIA-NeMo/RL/pull/2590"), fix("vllm-project/vllm/pull/45635")],
    evidence=StaticProbe("vllm.config.vllm", r"--enable-return-routed-experts is incompatible with \"\s+\"pipeline"),
    examples=[
        yes(_MOE, _ON, vllm="0.33.0", platform="cuda", defaults={_CACHE: False}, gives={_CACHE: True}),
        yes(_MOE, {**_ON, "engine.pipeline_parallel_size": 2}, vllm="0.26.0", platform="cuda", refuses="pipeline stages"),
        yes(_MOE, {**_ON, _DECODE: 2}, vllm="0.33.0", platform="cuda", refuses="context"),
        yes(_MOE, _ON, vllm="0.32.0", platform="cpu", refuses="V2 model runner"),
        yes("qwen3", _ON, vllm="0.32.0", platform="cuda", refuses="a dense model"),
        no(_MOE, {**_ON, _CACHE: False}, vllm="0.30.0", platform="cuda"),
        no(_MOE, _ON, vllm="0.33.0", platform="cuda"),
        no(_MOE, _ON, vllm="0.30.0", platform="cpu"),
        no(_MOE, {_CACHE: False, "engine.pipeline_parallel_size": 2}, vllm="0.33.0", platform="cuda"),
        unknown(_MOE, {**_ON, _CACHE: False}, platform="cuda"),
    ],
)
