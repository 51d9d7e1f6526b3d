"""LoRA on the experts of Qwen3.5-MoE, Qwen3-VL-MoE and Qwen3-Omni: adapters with a matrix for each expert do not load.

What happens: "expected target modules in {… 'experts' …} but received …" (``ValueError``), or an error about keys or shapes, at
the first adapter. For these models vLLM expects what PEFT makes with ``target_parameters``: all experts of a layer stacked in
one matrix (``is_3d_moe_weight``). Trainers that have a layer for each expert (Megatron, prime-rl, transformers 4) write
``experts.0.gate_proj.lora_A`` and so on. With ``enable_mixed_moe_lora_format`` vLLM takes both. An adapter without experts is
not concerned.

When it can go: when vLLM tells the formats apart by itself. Read in 0.22.0, 0.24.0, 0.26.0, 0.28.0, 0.30.0 and 0.33.0; 0.18.0
has no such setting. prime-rl sets ``is_3d_moe_weight`` to False for the same reason; not run by us.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, StaticProbe, model_type, no, report, setting, unknown, yes
from quirks_plugins.runs import LORA

_MIXED = "engine.enable_mixed_moe_lora_format"

QUIRK = Quirk(
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
        yes("qwen3_5_moe", LORA, vllm="0.26.0", advises=_MIXED),
        yes("qwen3_vl_moe", LORA, vllm="0.33.0", purpose="serve"),
        no("qwen3_5_moe", {**LORA, _MIXED: True}, vllm="0.26.0"),
        no("qwen3_5_moe", vllm="0.26.0"),
        unknown("qwen3_5_moe", LORA),
    ],
)
