"""Pipeline parallelism over Ray before vLLM 0.21: what its older executor does to requests and weight updates, one row each.

What happens: Ray's compiled graph carries forward passes and their outputs between processes. With two stages on two nodes
larger outputs, those with logprobs, get stuck in it: such a request waits for ever ("RayChannelTimeoutError"), while others are
answered; a rollout asks for logprobs always. Other calls, weight updates among them, go past the graph, so that both run at
once in one worker; with stages the engine does not wait for a pass before it takes the next call. Some two steps in a hundred
then report NaN for the KL error and other metrics, without an error. vLLM's maintainers recommend ``RayExecutorV2``, which has
one queue for both: vLLM 0.20 has it with VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1, 0.21.0 by default.

When it can go: when vLLM 0.20 is no longer supported. The variable was read in 0.19.1, 0.20.0, 0.21.0 and 0.33.0. An update
that first pauses and drains the engine is not concerned.

Evidence: the reports (0.19, TP 8 x PP 2; NeMo RL with ``in_flight_weight_updates``); they need two nodes or two GPUs and Ray,
and were not run by us.
"""

from quirks_core import Advise, Affected, Default, Quirk, Severity, no, package, purpose, report, setting, unknown, yes
from quirks_core.declaration.match import environment
from quirks_plugins.conditions import PP

_EXECUTOR, _VARIABLE = "engine.distributed_executor_backend", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
_STAGES = {"engine.pipeline_parallel_size": 2, _EXECUTOR: "ray"}
_stages_over_ray = PP.above(1) & setting(_EXECUTOR).one_of("ray")
_has_other_executor = package("vllm", introduced="0.20.0")
_BEFORE_V2 = Affected("vllm", introduced="0.16.0", fixed="0.21.0")

RAY_PIPELINE_LOGPROBS = Quirk(
    id="ray-pipeline-logprobs",
    title="With pipeline stages over Ray, a request with logprobs can hang for ever",
    match=_stages_over_ray,
    affected=_BEFORE_V2,
    adjustments=[
        Default(
            f"env.{_VARIABLE}", "1", reason="the older executor can hang at requests with logprobs", when=_has_other_executor
        ),
        Advise(
            "with pipeline stages over Ray this vLLM can hang at a request with logprobs: use more tensor parallelism in place "
            "of stages, or install vLLM 0.21 or newer",
            when=~_has_other_executor,
        ),
    ],
    severity=Severity.CRASH,
    references=report("vllm-project/vllm#38602"),
    examples=[
        yes("qwen3", _STAGES, vllm="0.20.1", gives={f"env.{_VARIABLE}": "1"}),
        yes("qwen3", _STAGES, vllm="0.19.1", purpose="serve", gives={}, advises="0.21"),
        no("qwen3", _STAGES, vllm="0.21.0"),
        no("qwen3", {**_STAGES, _EXECUTOR: "mp"}, vllm="0.20.1"),
        unknown("qwen3", _STAGES),
    ],
)

RAY_PIPELINE_UPDATES = Quirk(
    id="ray-pipeline-updates",
    title="With pipeline stages over Ray, weight updates run in the middle of forward passes",
    match=purpose("rollout") & _stages_over_ray & ~environment(_VARIABLE).one_of("1"),
    affected=_BEFORE_V2,
    adjustments=Advise(
        "with pipeline stages over Ray this vLLM can run a weight update during a forward pass: let requests finish before "
        "each update (NeMo RL: in_flight_weight_updates: false), or install vLLM 0.21 or newer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("NVIDIA-NeMo/RL#2180"),
    examples=[
        yes("qwen3", _STAGES, vllm="0.19.1", advises="in_flight_weight_updates"),
        no("qwen3", _STAGES, vllm="0.21.0"),
        no("qwen3", _STAGES, vllm="0.20.1", env={_VARIABLE: "1"}),
        no("qwen3", {**_STAGES, _EXECUTOR: "mp"}, vllm="0.19.1"),
        no("qwen3", _STAGES, vllm="0.19.1", purpose="eval"),
        unknown("qwen3", _STAGES),
    ],
)
