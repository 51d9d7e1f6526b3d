"""MoE models in bfloat16 on vLLM 0.20 to 0.25: after a trainer's first update the policy generates garbage.

What happens: rollouts are right up to the first weight update, and garbage in many languages from then on; a restart with the
same weights is right. From 0.20 on vLLM prefers FlashInfer's kernels for experts, and gives their weights another layout at
start (``w13`` with its halves swapped, or in blocks). Trainers of that time call the model's own ``load_weights``, which writes
checkpoint tensors into it. With Triton's experts the layout stays that of the checkpoint; vLLM itself takes them on Hopper from
0.24 on. From 0.26 on `raw-weight-load` sees such a call and warns, and `moe-block-layout` knows Blackwell.

When it can go: when vLLM 0.25 is no longer supported. The order of kernels was read in 0.18.0, 0.22.0, and 0.24.0 to 0.33.0;
with several data-parallel ranks FlashInfer's come last, and with LoRA vLLM takes Triton's. NeMo RL set ``moe_backend: triton``
for the same reason (Moonlight, 0.20.0).

Evidence: the reports, with Qwen3.6-35B-A3B, Qwen3-VL-30B-A3B, Qwen3-Omni and Moonlight; it needs a Hopper GPU, and was not run.
"""

from quirks_core import Affected, Default, Quirk, Severity, no, platform, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import DP, mixture, our_worker, quantized
from quirks_plugins.runs import QWEN3_MOE

_BACKEND = "engine.moe_backend"
_VERL = {"train.framework": "verl"}
#: Trainers whose releases of that time call the model's own ``load_weights``; vLLM's reload gives the layout again.
_TRAINERS = ("ms-swift", "nemo-rl", "skyrl", "trl", "verl")

QUIRK = Quirk(
    id="moe-layout-updates",
    title="A trainer's update overwrites the layout that vLLM has given the experts of a MoE model",
    match=purpose("rollout")
    & setting("train.framework").one_of(*_TRAINERS)
    & platform("cuda")
    & mixture
    & ~quantized
    & ~our_worker
    & ~DP.above(1)
    & ~setting("engine.enable_lora").is_true()
    & ~setting("engine.quantization").is_set(),
    affected=Affected("vllm", introduced="0.20.0", fixed="0.26.0"),
    adjustments=Default(_BACKEND, "triton", reason="its experts keep the checkpoint's layout, which trainers write into"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#42821"),
        report("NovaSky-AI/SkyRL#1680"),
        report("NVIDIA-NeMo/RL/pull/2586"),
        report("modelscope/ms-swift#9475"),
        report("modelscope/ms-swift#9656"),
    ],
    examples=[
        yes(QWEN3_MOE, _VERL, vllm="0.22.0", platform="cuda", gives={_BACKEND: "triton"}),
        yes(QWEN3_MOE, {**_VERL, _BACKEND: "flashinfer_cutlass"}, vllm="0.20.1", platform="cuda", gives={}),
        no(QWEN3_MOE, vllm="0.22.0", platform="cuda"),
        no(QWEN3_MOE, _VERL, vllm="0.26.0", platform="cuda"),
        no(QWEN3_MOE, _VERL, vllm="0.19.1", platform="cuda"),
        no(QWEN3_MOE, {**_VERL, "engine.data_parallel_size": 2}, vllm="0.22.0", platform="cuda"),
        no(QWEN3_MOE, {**_VERL, "engine.enable_lora": True}, vllm="0.22.0", platform="cuda"),
        no("qwen3", _VERL, vllm="0.22.0", platform="cuda"),
        unknown(QWEN3_MOE, _VERL, platform="cuda"),
    ],
    cost="the difference between the two kernels",
)
