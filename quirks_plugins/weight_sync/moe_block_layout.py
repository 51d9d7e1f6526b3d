"""MoE models on Blackwell under verl, and TRL in one process: vLLM turns experts into blocks, and updates do not fit.

What happens: the first weight update ends with "shard_dim=0 is not a valid data dimension for a 3D tensor", or, where the
parameters keep their shape (0.33), every update is garbage. On GPUs of capability 10.x vLLM prefers FlashInfer's TRT-LLM
kernels for bfloat16 experts, and gives the weights their layout once, when they are loaded; verl's standard update
(verl-project/verl#7987, open) and TRL's in colocate mode write checkpoint tensors into the live parameters. Triton's experts
keep the checkpoint's layout.

When it can go: when both update through vLLM's reload.

Evidence: the analysis in that pull request, for vLLM 0.24.0 and 0.29.0; the order of backends was read in 0.24.0 to 0.33.0,
TRL's update in 1.16.0. No Blackwell was at hand.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import mixture, quantized, trl_in_process
from quirks_plugins.runs import QWEN3_MOE

_BACKEND, _CAPABILITY = "engine.moe_backend", "platform.gpu.capability"
_VERL = {"train.framework": "verl"}
_TRL = {"train.framework": "trl", "engine.distributed_executor_backend": "external_launcher"}
_BLACKWELL = {_CAPABILITY: 100}

QUIRK = Quirk(
    id="moe-block-layout",
    title="A trainer's update does not fit the layout that vLLM gives experts on Blackwell",
    match=purpose("rollout")
    & mixture
    & ~quantized
    & (setting("train.framework").one_of("verl") | trl_in_process)
    & Fact(_CAPABILITY).one_of(100, 103)
    & (~setting(_BACKEND).is_set() | setting(_BACKEND).one_of("auto")),
    affected=Affected("vllm", introduced="0.24.0"),
    adjustments=Advise(
        "this trainer writes weights into live parameters, and this vLLM gives experts another layout on this GPU: set "
        f"{_BACKEND}: triton (where the trainer has no option for it: MODEL_QUIRKS_SET={_BACKEND}=triton)"
    ),
    severity=Severity.CRASH,
    crash="is not a valid data dimension for a 3D tensor",
    references=report("verl-project/verl/pull/7987"),
    examples=[
        yes(QWEN3_MOE, _VERL, vllm="0.29.0", platform="cuda", extra=_BLACKWELL, advises="engine.moe_backend: triton"),
        no(QWEN3_MOE, {**_VERL, _BACKEND: "triton"}, vllm="0.29.0", platform="cuda", extra=_BLACKWELL),
        no(QWEN3_MOE, _VERL, vllm="0.29.0", platform="cuda", extra={_CAPABILITY: 90}),
        yes(QWEN3_MOE, _TRL, vllm="0.33.0", platform="cuda", extra=_BLACKWELL, advises="engine.moe_backend: triton"),
        no(QWEN3_MOE, {"train.framework": "trl"}, vllm="0.29.0", platform="cuda", extra=_BLACKWELL),
        no("qwen3", _VERL, vllm="0.29.0", platform="cuda", extra=_BLACKWELL),
        unknown(QWEN3_MOE, _VERL, platform="cuda", extra=_BLACKWELL),
    ],
)
