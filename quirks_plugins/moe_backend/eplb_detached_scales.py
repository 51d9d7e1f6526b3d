"""EPLB with quantised experts: when experts move, products of their scales stay behind, and accuracy collapses.

What happens: answers are right until EPLB first moves experts, and get worse with every move, without a message (gsm8k 0.95 to
0.01 with a step interval of 4, DeepSeek-R1 in NVFP4). Kernels of FlashInfer get the product of a weight's and an activation's
scale, which vLLM computes once (``g1_alphas``); EPLB moves weights and scales, not this copy. Since 0.18.0 ModelOpt's
NVFP4 has no such copy; for FP8 with static scales per tensor, as FlashInfer's CUTLASS experts compute it, 0.28.0 moves it, too.

When it can go: when vLLM 0.27 is no longer supported. What EPLB and weight updates do to each other is `eplb-refit`.

Evidence: the measurements in vllm-project/vllm#34646, and ``fused_moe/oracle/nvfp4.py`` and ``fp8.py`` of 0.16.0, 0.18.0,
0.22.0, 0.26.0 and 0.28.0; it needs several GPUs, and was not run by us.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, described, no, report, setting, unknown, yes
from quirks_plugins.conditions import mixture

_EPLB = {"engine.enable_eplb": True, "engine.enable_expert_parallel": True}
_STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
_FP8 = {"model_type": "mixtral", "num_local_experts": 8, "quantization_config": _STATIC}
_static_fp8 = described(
    Fact("model.quantization.quant_method").one_of("fp8")
    & Fact("model.quantization.activation_scheme").one_of("static")
    & ~Fact("model.quantization.weight_block_size").is_set(),
    "the checkpoint is FP8 with static scales per tensor",
    "the checkpoint is not FP8 with static scales per tensor",
)

QUIRK = Quirk(
    id="eplb-detached-scales",
    title="EPLB moves FP8 experts without the products of their scales",
    match=setting("engine.enable_eplb").is_true() & mixture & _static_fp8,
    affected=Affected("vllm", introduced="0.16.0", fixed="0.28.0"),
    adjustments=Advise(
        "EPLB of this vLLM moves experts and leaves products of their scales behind: set engine.enable_eplb: false, or install "
        "vLLM 0.28 or newer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/34646"),
        report("vllm-project/vllm/pull/37217"),
        report("vllm-project/vllm/pull/48355"),
    ],
    examples=[
        yes(_FP8, _EPLB, vllm="0.26.0", advises="0.28"),
        no(_FP8, _EPLB, vllm="0.28.0"),
        no(_FP8, vllm="0.26.0"),
        no({**_FP8, "quantization_config": {**_STATIC, "activation_scheme": "dynamic"}}, _EPLB, vllm="0.26.0"),
        unknown(_FP8, _EPLB),
    ],
)
