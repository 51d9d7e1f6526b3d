"""LoRA on Granite MoE, Gemma 4's MoE and openPangu's: before vLLM 0.25 the engine does not start.

What happens: "To support LoRA for MoE model, 'get_expert_mapping' must be implemented" ends the engine, also if the adapter has
no weights for experts. These models say that they support LoRA and lack the method. From 0.25.0 on vLLM takes it from the layer
(``RoutedExperts.get_expert_mapping``).

When it can go: when vLLM 0.24 is no longer supported. All models of vLLM 0.16.0, 0.20.0, 0.23.0 and 0.24.0 with
``SupportsLoRA`` and experts were looked through for the method; it was not run by us.
"""

from quirks_core import Affected, Fact, Quirk, Refuse, Severity, StaticProbe, model_type, no, report, setting, unknown, yes
from quirks_plugins.conditions import mixture
from quirks_plugins.runs import LORA

_GRANITE = {"model_type": "granitemoe", "num_local_experts": 32}
_GEMMA4 = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 128}}
_pangu = Fact("model.architectures").any_in("PanguProMoEV2ForCausalLM", "PanguUltraMoEForCausalLM")

QUIRK = Quirk(
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
        yes(_GRANITE, LORA, vllm="0.23.0", refuses="vLLM 0.26"),
        yes(_GEMMA4, LORA, vllm="0.24.0", purpose="serve"),
        no(_GRANITE, LORA, vllm="0.25.0"),
        no({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 0}}, LORA, vllm="0.23.0"),
        no({"model_type": "granitemoehybrid", "num_local_experts": 8}, LORA, vllm="0.23.0"),
        unknown(_GRANITE, LORA),
    ],
)
