"""Text-only checkpoints of Qwen3.5 before vLLM 0.27: weights that a trainer sends have names that the engine does not know.

What happens: the first update ends with "There is no module or parameter named …", or leaves the weights as they were. A
checkpoint saved from ``Qwen3_5ForCausalLM`` has names that begin with ``model.``; vLLM before 0.27 has no such class, and
serves it as the multimodal ``Qwen3_5ForConditionalGeneration``, whose names begin with ``model.language_model.`` and which
nothing maps to the others. From 0.27.0 on vLLM has the two text-only classes.

When it can go: when vLLM 0.26 is no longer supported. The registry was read in 0.18.0, 0.22.0, 0.25.1, 0.26.0 and 0.27.0; that
TRL meets it, in server and in colocate mode, is from its maintainers' answer.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, StaticProbe, no, purpose, report, unknown, yes

_TEXT = {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}
_MOE = {"model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"], "num_experts": 8}

QUIRK = Quirk(
    id="qwen3-5-text-only",
    title="Weight updates of a text-only Qwen3.5 have names that this vLLM does not know",
    match=purpose("rollout") & Fact("model.architectures").any_in("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    affected=Affected("vllm", introduced="0.18.0", fixed="0.27.0"),
    adjustments=Advise(
        "this vLLM has no text-only Qwen3.5, and a trainer's names (model.layers…) match nothing in the multimodal class that "
        "it takes: install vLLM 0.27 or newer, or train the checkpoint with the vision tower"
    ),
    severity=Severity.CRASH,
    crash="no module or parameter named",
    references=[report("huggingface/trl#5269"), report("vllm-project/vllm/pull/50210")],
    evidence=StaticProbe("vllm.model_executor.models.registry", r'"Qwen3_5ForCausalLM": \(', found_means_affected=False),
    examples=[
        yes(_TEXT, vllm="0.26.0", advises="0.27"),
        yes(_MOE, {"train.framework": "trl"}, vllm="0.22.0"),
        no(_TEXT, vllm="0.27.0"),
        no(_TEXT, vllm="0.26.0", purpose="serve"),
        no({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}, vllm="0.26.0"),
        unknown(_TEXT),
    ],
)
