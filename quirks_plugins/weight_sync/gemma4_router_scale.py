"""Gemma 4's MoE before vLLM 0.26: an update through vLLM's own reload changes a constant of the routers.

What happens: from the first update on, tokens go to other experts than in the trainer: ``Gemma4Router.root_size`` becomes 1.0,
and was one by the root of the hidden size. The reload makes all tensors of a layer anew, and copies this one back too, which no
update sends (the report saw a divergence of 1.52 after three steps, and 0.008 with the fix). Trainers that call the model's own
``load_weights`` are not concerned.

When it can go: when vLLM 0.25 is no longer supported. vllm-project/vllm#44371 keeps such buffers; ``layerwise.py`` was read in
0.16.0, 0.22.0, 0.25.0 and 0.26.0. Of the models there, Gemma 4's router alone has a loaded weight beside such a constant.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, fix, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import mixture

_MOE = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 128}}

QUIRK = Quirk(
    id="gemma4-router-scale",
    title="A weight update through vLLM's reload changes a constant of Gemma 4's routers",
    match=model_type("gemma4", "gemma4_text", "gemma4_unified") & mixture & purpose("rollout"),
    affected=Affected("vllm", introduced="0.19.0", fixed="0.26.0"),
    adjustments=Advise(
        "an update by reload_weights or update_weights of this vLLM sets root_size of Gemma 4's routers to 1.0: install vLLM "
        "0.26 or newer, or send weights by the model's own load_weights"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[fix("vllm-project/vllm/pull/44371"), report("vllm-project/vime/pull/326")],
    evidence=StaticProbe(
        "vllm.model_executor.model_loader.reload.layerwise", "kernel_non_persistent_buffers", found_means_affected=False
    ),
    examples=[
        yes(_MOE, vllm="0.23.0", advises="0.26"),
        no(_MOE, vllm="0.26.0"),
        no(_MOE, vllm="0.23.0", purpose="serve"),
        no({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 0}}, vllm="0.23.0"),
        unknown(_MOE),
    ],
)
