"""Weight updates during generation, with pipeline stages over Ray, before vLLM 0.21: NaN among the logprobs of a few steps.

What happens: some two steps in a hundred report NaN for the KL error and other metrics, without an error. The older executor
sends forward passes through Ray's compiled graph and other calls, weight updates among them, past it, so that both run at once
in one worker; with stages the engine does not wait for a pass before it takes the next call. ``RayExecutorV2`` has one queue
for both: vLLM 0.20 has it with VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1 (which `ray-pipeline-logprobs` sets), 0.21.0 by default.

When it can go: when vLLM 0.20 is no longer supported. An update that first pauses and drains the engine is not concerned.

Evidence: the report and its analysis (NeMo RL with ``in_flight_weight_updates``); it needs two GPUs and Ray, and was not run.
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_core.declaration.match import environment
from quirks_plugins.conditions import PP

_EXECUTOR, _VARIABLE = "engine.distributed_executor_backend", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
_STAGES = {"engine.pipeline_parallel_size": 2, _EXECUTOR: "ray", "train.framework": "nemo-rl"}

QUIRK = Quirk(
    id="ray-pipeline-updates",
    title="With pipeline stages over Ray, weight updates run in the middle of forward passes",
    match=purpose("rollout") & PP.above(1) & setting(_EXECUTOR).one_of("ray") & ~environment(_VARIABLE).one_of("1"),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.21.0"),
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
