"""Updates through vLLM's own reload before vLLM 0.26: tensors that no update sends are lost, one row for each kind of layer.

What happens: the reload makes all tensors of a layer anew, also those that come with no update. Of Mamba-2 layers some are left
uninitialised, and samples are NaN or garbage from the first update on, also if the same weights are sent again: up to 0.21 the
reload treats ``conv_weights``, a view of the convolution, as a tensor of its own, and copies uninitialised memory over the
weight (vllm-project/vllm#42481); on 0.22 the load of ``D`` was dropped (PrimeIntellect-ai/prime-rl#2714), and Nemotron-Nano
still changed in July (vllm-project/vllm#48284). Of Gemma 4's routers a constant changes, and tokens go to other experts than in
the trainer: ``Gemma4Router.root_size`` becomes 1.0, and was one by the root of the hidden size (the report saw a divergence of
1.52 after three steps, and 0.008 with the fix). Trainers that call the model's own ``load_weights`` are not concerned.

When it can go: when vLLM 0.25 is no longer supported. vllm-project/vllm#44371 keeps such buffers. ``MambaMixer2`` was read in
0.22.0, 0.25.0 and 0.26.0, and ``layerwise.py`` in 0.16.0, too; from 0.26.0 on refits of Mamba-2 models are tested here. Of the
models there, Gemma 4's router alone has a loaded weight beside such a constant.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, fix, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import mixture

_MOE = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 128}}
_PROBE = StaticProbe(
    "vllm.model_executor.model_loader.reload.layerwise", "kernel_non_persistent_buffers", found_means_affected=False
)


def _advise(what: str) -> Advise:
    return Advise(
        f"an update by reload_weights or update_weights of this vLLM {what}: install vLLM 0.26 or newer, or send weights by "
        "the model's own load_weights"
    )


MAMBA2_RELOAD = Quirk(
    id="mamba2-reload",
    title="A weight update through vLLM's reload leaves tensors of Mamba-2 layers uninitialised",
    match=model_type("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2", "NemotronH_Nano_VL_V2")
    & purpose("rollout"),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.26.0"),
    adjustments=_advise("leaves tensors of Mamba-2 layers (conv1d, D) uninitialised"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        fix("vllm-project/vllm/pull/42481"),
        report("PrimeIntellect-ai/prime-rl/pull/2714"),
        report("vllm-project/vllm/pull/48284"),
    ],
    evidence=_PROBE,
    examples=[
        yes("nemotron_h", vllm="0.22.0", advises="0.26"),
        no("nemotron_h", vllm="0.26.0"),
        no("nemotron_h", vllm="0.22.0", purpose="serve"),
        unknown("nemotron_h"),
    ],
)

GEMMA4_ROUTER_SCALE = Quirk(
    id="gemma4-router-scale",
    title="A weight update through vLLM's reload changes a constant of Gemma 4's routers",
    match=model_type("gemma4", "gemma4_text", "gemma4_unified") & mixture & purpose("rollout"),
    affected=Affected("vllm", introduced="0.19.0", fixed="0.26.0"),
    adjustments=_advise("sets root_size of Gemma 4's routers to 1.0"),
    severity=Severity.WRONG_OUTPUT,
    references=[fix("vllm-project/vllm/pull/44371"), report("vllm-project/vime/pull/326")],
    evidence=_PROBE,
    examples=[
        yes(_MOE, vllm="0.23.0", advises="0.26"),
        no(_MOE, vllm="0.26.0"),
        no(_MOE, vllm="0.23.0", purpose="serve"),
        no({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 0}}, vllm="0.23.0"),
        unknown(_MOE),
    ],
)
