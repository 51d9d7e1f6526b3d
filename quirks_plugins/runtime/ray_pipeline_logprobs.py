"""Pipeline parallelism over Ray before vLLM 0.21: the first request with logprobs can hang the engine.

What happens: with two stages on two nodes any request with logprobs waits for ever ("RayChannelTimeoutError"), while others are
answered; a rollout asks for logprobs always. Ray's compiled graph carries the outputs between processes, and larger ones with
logprobs get stuck. vLLM's maintainers recommend ``RayExecutorV2``, which has no such graph: vLLM 0.20 has it with
VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1, and 0.21.0 by default.

When it can go: when vLLM 0.20 is no longer supported. The variable was read in 0.19.1, 0.20.0, 0.21.0 and 0.33.0.

Evidence: the report (0.19, TP 8 x PP 2); it needs two nodes, and was not run by us.
"""

from quirks_core import Advise, Affected, Default, Quirk, Severity, no, package, report, setting, unknown, yes
from quirks_plugins.conditions import PP

_EXECUTOR, _VARIABLE = "engine.distributed_executor_backend", "env.VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
_ON = {"engine.pipeline_parallel_size": 2, _EXECUTOR: "ray"}
_has_it = package("vllm", introduced="0.20.0")

QUIRK = Quirk(
    id="ray-pipeline-logprobs",
    title="With pipeline stages over Ray, a request with logprobs can hang for ever",
    match=PP.above(1) & setting(_EXECUTOR).one_of("ray"),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.21.0"),
    adjustments=[
        Default(_VARIABLE, "1", reason="the older executor can hang at requests with logprobs", when=_has_it),
        Advise(
            "with pipeline stages over Ray this vLLM can hang at a request with logprobs: use more tensor parallelism in place "
            "of stages, or install vLLM 0.21 or newer",
            when=~_has_it,
        ),
    ],
    severity=Severity.CRASH,
    references=report("vllm-project/vllm#38602"),
    examples=[
        yes("qwen3", _ON, vllm="0.20.1", gives={_VARIABLE: "1"}),
        yes("qwen3", _ON, vllm="0.19.1", purpose="serve", gives={}, advises="0.21"),
        no("qwen3", _ON, vllm="0.21.0"),
        no("qwen3", {**_ON, _EXECUTOR: "mp"}, vllm="0.20.1"),
        no("qwen3", {_EXECUTOR: "ray"}, vllm="0.20.1"),
        unknown("qwen3", _ON),
    ],
)
