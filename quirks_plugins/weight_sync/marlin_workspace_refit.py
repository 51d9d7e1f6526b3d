"""Marlin kernels before vLLM 0.27: a refit frees their workspace, which captured CUDA graphs go on using.

What happens: after a weight update the engine hangs, or generates garbage. Each pass over loaded weights
(``process_weights_after_loading``) allocates the kernel's locks anew (``marlin_make_workspace_new``), and the graphs keep the
address of the first ones, whose memory is somebody else's by then. vLLM takes Marlin for FP8 on GPUs that have no FP8 (before
Ada and Hopper), and for weights in 4 or 8 bits of GPTQ, AWQ and compressed-tensors (``pack-quantized``). FP4 was not examined.

When it can go: when vLLM 0.26 is no longer supported. vllm-project/vllm#48438 keeps the workspace, and shows the fault on a
4090; read in 0.18.0, 0.22.0, 0.26.0, 0.27.0 and 0.33.0; not run by us. The run is advised and not refused: nothing is wrong
until that memory is used again.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, described, fix, no, report, unknown, yes
from quirks_core.declaration.match import Fact, platform, purpose, setting
from quirks_plugins.conditions import fp8_weights, without_fp8

_EAGER = "engine.enforce_eager"
_FP8, _A100 = {"engine.quantization": "fp8"}, {"platform.gpu.capability": 80}
_GPTQ = {"model_type": "qwen3", "quantization_config": {"quant_method": "gptq", "bits": 4}}
_marlin = described(
    (fp8_weights & without_fp8)
    | Fact("model.quantization.quant_method").one_of("gptq", "awq")
    | Fact("model.quantization.format").one_of("pack-quantized"),
    "the weights are computed by Marlin",
    "the weights are not computed by Marlin",
)

QUIRK = Quirk(
    id="marlin-workspace-refit",
    title="A refit frees the workspace of Marlin kernels that captured CUDA graphs go on using",
    match=purpose("rollout") & platform("cuda") & _marlin & ~setting(_EAGER).is_true(),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.27.0"),
    adjustments=Advise(
        "after a weight update, captured CUDA graphs of Marlin kernels go on using memory that was freed, and the engine can "
        f"hang or generate garbage: install vLLM 0.27 or newer, or set {_EAGER}: true"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#48312"), fix("vllm-project/vllm/pull/48438")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.quantization.utils.marlin_utils_fp8",
        r"layer\.workspace = marlin_make_workspace_new\(device\)",
    ),
    examples=[
        yes("qwen3", _FP8, vllm="0.24.0", platform="cuda", extra=_A100, advises="0.27"),
        yes(_GPTQ, vllm="0.26.0", platform="cuda"),
        no("qwen3", _FP8, vllm="0.24.0", platform="cuda", extra={"platform.gpu.capability": 90}),
        no("qwen3", _FP8, vllm="0.27.0", platform="cuda", extra=_A100),
        no(_GPTQ, {_EAGER: True}, vllm="0.26.0", platform="cuda"),
        no(_GPTQ, vllm="0.26.0", platform="cuda", purpose="serve"),
        no("qwen3", vllm="0.24.0", platform="cuda", extra=_A100),
        unknown(_GPTQ, platform="cuda"),
    ],
)
