"""Layers that this vLLM cannot give every adapter to, one row each.

What happens: the engine ends while it starts, at the first adapter, or computes something else; a model without adapters is
right.

``lora-expert-mapping``: Granite MoE, Gemma 4's MoE and openPangu's say that they support LoRA and lack a method for it, also if
the adapter has no weights for experts. From 0.25.0 on vLLM takes it from the layer (``RoutedExperts.get_expert_mapping``).

``lora-expert-format``: some Qwen3 models want all experts of a layer stacked in one matrix, as PEFT's ``target_parameters``
makes them (``is_3d_moe_weight``). Megatron, prime-rl and transformers 4 write ``experts.0.gate_proj.lora_A`` and so on.

``lora-expert-parallel``: from 0.21 on vLLM has LoRA for experts that are shared among ranks, but not in every combination.

``lora-fp8-experts``: the Triton experts get activations that are FP8 already, and LoRA's product takes these numbers for
activations (``TritonExperts.apply``). Experts with int4 weights, and NVFP4 as Marlin computes it, have activations in 16 bits.

``qwen3-5-lora-projections``: the gated delta net has one layer for q, k, v and z, in four slices, and the model declares two
names for it. In 0.17 and 0.18 the adapter with which vLLM warms up fails; builds after them fail with tensor parallelism. From
0.21 to 0.27 an adapter with ``in_proj_qkv`` and without ``in_proj_z`` fails in another way (vllm-project/vllm#47639), which no
setting shows.

When it can go: row by row with the last affected vLLM; ``lora-expert-format`` when vLLM tells the formats apart by itself,
``lora-expert-parallel`` when ``FusedMoEWithLoRA`` takes these combinations.

Evidence: the sources at the ends of each range, of 0.16.0 to 0.24.0 all models with ``SupportsLoRA`` and experts; not run by
us.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Refuse, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, described, model_type, package, setting
from quirks_plugins.conditions import DP, TP, expert_flag, mixture
from quirks_plugins.runs import QWEN3_MOE, parallel

_LORA = {"engine.enable_lora": True}
_GRANITE = {"model_type": "granitemoe", "num_local_experts": 32}
_GEMMA4 = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 128}}
_pangu = Fact("model.architectures").any_in("PanguProMoEV2ForCausalLM", "PanguUltraMoEForCausalLM")

LORA_EXPERT_MAPPING = Quirk(
    id="lora-expert-mapping",
    title="With LoRA, Granite MoE, Gemma 4's MoE and openPangu's do not start",
    match=setting("engine.enable_lora").is_true()
    & mixture
    & (model_type("granitemoe", "granitemoeshared", "gemma4", "gemma4_text", "gemma4_unified") | _pangu),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.25.0"),
    adjustments=Refuse(
        "this vLLM cannot map LoRA to this model's experts, and the engine ends while it starts, whatever the adapter holds",
        "install vLLM 0.26 or newer (0.25.0 has the change, too), or merge the adapter and leave engine.enable_lora off",
    ),
    severity=Severity.CRASH,
    crash="'get_expert_mapping' must be implemented",
    references=[report("vllm-project/vllm/pull/46247"), report("vllm-project/vllm#53470"), report("vllm-project/vllm#31923")],
    evidence=StaticProbe("vllm.lora.utils", "'get_expert_mapping' must be implemented"),
    examples=[
        yes(_GRANITE, _LORA, vllm="0.23.0", refuses="vLLM 0.26"),
        yes(_GEMMA4, _LORA, vllm="0.24.0", purpose="serve"),
        no(_GRANITE, _LORA, vllm="0.25.0"),
        no({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 0}}, _LORA, vllm="0.23.0"),
        no({"model_type": "qwen3_moe", "num_experts": 8}, _LORA, vllm="0.23.0"),
        no({"model_type": "granitemoehybrid", "num_local_experts": 8}, _LORA, vllm="0.23.0"),
        unknown(_GRANITE, _LORA),
    ],
)

_MIXED = "engine.enable_mixed_moe_lora_format"

LORA_EXPERT_FORMAT = Quirk(
    id="lora-expert-format",
    title="vLLM expects LoRA adapters with stacked experts for some Qwen3 models",
    kind=Kind.RULE,
    match=setting("engine.enable_lora").is_true()
    & model_type("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_vl_moe")
    & ~setting(_MIXED).is_set(),
    affected=Affected("vllm", introduced="0.22.0"),
    adjustments=Advise(
        "an adapter with experts of this model must have them stacked, as PEFT's target_parameters makes them; for one with a "
        f"matrix for each expert set {_MIXED}: true"
    ),
    severity=Severity.CRASH,
    crash="expected target modules in",
    references=[
        report("vllm-project/vllm#40005"),
        report("vllm-project/vllm/pull/41384"),
        report("agentscope-ai/TuFT#154"),
    ],
    evidence=StaticProbe("vllm.lora.model_manager", r"self\.model\.is_3d_moe_weight"),
    examples=[
        yes("qwen3_5_moe", _LORA, vllm="0.26.0", advises=_MIXED),
        yes("qwen3_vl_moe", _LORA, vllm="0.33.0", purpose="serve"),
        no("qwen3_5_moe", {**_LORA, _MIXED: True}, vllm="0.26.0"),
        no("qwen3_5", _LORA, vllm="0.26.0"),
        no("qwen3_moe", _LORA, vllm="0.26.0"),
        no("qwen3_5_moe", vllm="0.26.0"),
        unknown("qwen3_5_moe", _LORA),
    ],
)

_EXCHANGE = "engine.all2all_backend"
_EP = {**_LORA, **parallel(tp=2, flag=True)}
_unsupported = package("vllm", fixed="0.21.0")
_sharded = setting("engine.fully_sharded_loras").is_true()
_other_exchange = setting(_EXCHANGE).is_set() & ~setting(_EXCHANGE).one_of("allgather_reducescatter")

LORA_EXPERT_PARALLEL = Quirk(
    id="lora-expert-parallel",
    title="LoRA on experts that are shared among ranks: an assertion ends the engine while it starts",
    kind=Kind.RULE,
    match=setting("engine.enable_lora").is_true()
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

_H100 = {"platform.gpu.capability": 90}
_FP8_MOE = {**QWEN3_MOE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
_COMPRESSED = {**QWEN3_MOE, "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}
_fp8_experts = described(
    Fact("model.quantization.quant_method").one_of("fp8", "fbgemm_fp8")
    | Fact("model.quantization.format").one_of("float-quantized")
    | Fact("model.quantization.quant_algo").matches("^FP8")
    | Fact("engine.quantization").one_of("fp8", "fp8_per_tensor", "fp8_per_block"),
    "the experts are FP8",
    "the experts are not FP8",
)
_capability = Fact("platform.gpu.capability")
#: Older GPUs have no FP8, and vLLM's kernel for them (Marlin) takes activations in 16 bits.
_without_fp8 = _capability.is_set() & _capability.below(89)

LORA_FP8_EXPERTS = Quirk(
    id="lora-fp8-experts",
    title="LoRA on a MoE model in FP8 corrupts all output, also that of requests without an adapter",
    match=setting("engine.enable_lora").is_true() & mixture & _fp8_experts & ~_without_fp8,
    affected=Affected("vllm", introduced="0.20.0", fixed="0.24.0"),
    adjustments=Refuse(
        "with LoRA this vLLM multiplies activations that are FP8 already, and every request of a MoE model gets gibberish",
        "install vLLM 0.24 or newer, take a base model in bfloat16, or set engine.enable_lora: false",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#42007"), report("vllm-project/vllm#42008")],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.experts.triton_moe", "lora_unquantized_hidden_states", found_means_affected=False
    ),
    examples=[
        yes(_FP8_MOE, _LORA, vllm="0.20.1", purpose="serve", platform="cuda", extra=_H100, refuses="vLLM 0.24"),
        yes(_COMPRESSED, _LORA, vllm="0.23.0", platform="cuda", extra=_H100, refuses="bfloat16"),
        no(_FP8_MOE, _LORA, vllm="0.24.0"),
        no(_FP8_MOE, _LORA, vllm="0.20.1", platform="cuda", extra={"platform.gpu.capability": 80}),
        no(_FP8_MOE, _LORA, vllm="0.19.1"),
        no(QWEN3_MOE, _LORA, vllm="0.20.1"),
        no({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, _LORA, vllm="0.20.1"),
        unknown(_FP8_MOE, _LORA),
    ],
)

QWEN3_5_LORA_PROJECTIONS = Quirk(
    id="qwen3-5-lora-projections",
    title="LoRA fails on the gated delta net of Qwen3.5",
    match=setting("engine.enable_lora").is_true() & model_type("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
    affected=Affected("vllm", introduced="0.17.0", fixed="0.20.0"),
    adjustments=Advise(
        "this vLLM cannot set up LoRA for the linear attention of Qwen3.5, and ends with an IndexError: install vLLM 0.20 or "
        "newer, or merge the adapter and leave engine.enable_lora off"
    ),
    severity=Severity.CRASH,
    crash="list index out of range",
    references=[
        report("vllm-project/vllm#35286"),
        report("vllm-project/vllm#40869"),
        report("vllm-project/vllm/pull/36652"),
        report("vllm-project/vllm/pull/38927"),
        report("modelscope/ms-swift#9103"),
    ],
    evidence=StaticProbe("vllm.model_executor.models.qwen3_5", r"output_sizes=\[key_dim, key_dim, value_dim, value_dim\]"),
    examples=[
        yes("qwen3_5", _LORA, vllm="0.18.0", advises="0.20"),
        yes("qwen3_5_moe", {**_LORA, "engine.tensor_parallel_size": 2}, vllm="0.19.1", purpose="serve"),
        no("qwen3_5", _LORA, vllm="0.20.0"),
        no("qwen3_5", vllm="0.18.0"),
        no("qwen3_next", _LORA, vllm="0.18.0"),
        unknown("qwen3_5", _LORA),
    ],
)
