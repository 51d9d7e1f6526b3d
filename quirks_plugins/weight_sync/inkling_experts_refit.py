"""Inkling: a refit leaves all experts, the sink experts too, at their old values.

What happens: after a weight update attention and routers are those of the new policy, and the experts those of the old one.
Inkling copies a checkpoint's experts into its parameters itself (``load_expert_weight``, and ``load_weight`` of its sink
experts), and a layerwise reload loses such copies, as for gpt-oss (``gptoss-experts-refit``). A patch as for gpt-oss is not
possible, because the model first moves each tensor to the parameter's device, which has no values during a reload. An update of
a LoRA adapter is not affected.

When it can go: when vLLM loads these tensors through their loaders. The model has no tiny form that this project could run;
nothing was run on a GPU.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, model_type, no, purpose, report, unknown, yes

QUIRK = Quirk(
    id="inkling-experts-refit",
    title="A refit leaves all experts of Inkling at their old values, silently",
    match=purpose("rollout") & model_type("inkling_model", "inkling_text", "inkling_mm_model"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        "a refit does not reach Inkling's experts, which vLLM copies itself: start a new engine for each policy"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/57795"),
    evidence=StaticProbe("vllm.models.inkling.nvidia.moe", r"self\.w13_weight\.data\.copy_\(weight\)"),
    examples=[
        yes("inkling_mm_model", vllm="0.32.0", advises="does not reach Inkling's experts"),
        no("inkling_mm_model", vllm="0.32.0", purpose="serve"),
        unknown("inkling_mm_model"),
    ],
)
