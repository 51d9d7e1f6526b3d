"""vLLM's own reload before 0.26 copies back tensors that no update sends, one row for each kind of layer.

What happens: the reload makes all tensors of a layer anew, and copies its constants and views back too. From the first update
on ``Gemma4Router.root_size``, one by the root of the hidden size, is 1.0, and tokens go to other experts than in the trainer
(the report saw a divergence of 1.52 after three steps, and 0.008 with the fix). Of Mamba-2, ``conv_weights``, a view of the
convolution, puts uninitialised memory over the weight, up to 0.21; on 0.22 the load of ``D`` was dropped, and Nemotron-Nano
still changed in July. Trainers that call the model's own ``load_weights`` are not concerned.

When it can go: when vLLM 0.25 is no longer supported. The reload was read in 0.16.0, 0.22.0, 0.25.0 and 0.26.0; of the models
there, Gemma 4's router alone has a loaded weight beside such a constant. From 0.26.0 on refits of Mamba-2 are tested here.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, fix, model_type, no, purpose, report, unknown, yes
from quirks_plugins.conditions import mixture

_MOE = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_experts": 128}}

GEMMA4_ROUTER_SCALE = Quirk(
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

MAMBA2_RELOAD = Quirk(
    id="mamba2-reload",
    title="A weight update through vLLM's reload leaves tensors of Mamba-2 layers uninitialised",
    match=model_type("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2", "NemotronH_Nano_VL_V2")
    & purpose("rollout"),
    affected=Affected("vllm", introduced="0.16.0", fixed="0.26.0"),
    adjustments=Advise(
        "an update by reload_weights or update_weights of this vLLM leaves tensors of Mamba-2 layers (conv1d, D) "
        "uninitialised: install vLLM 0.26 or newer, or send weights by the model's own load_weights"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        fix("vllm-project/vllm/pull/42481"),
        report("PrimeIntellect-ai/prime-rl/pull/2714"),
        report("vllm-project/vllm/pull/48284"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.model_loader.reload.layerwise", "kernel_non_persistent_buffers", found_means_affected=False
    ),
    examples=[
        yes("nemotron_h", vllm="0.22.0", advises="0.26"),
        yes("granitemoehybrid", vllm="0.16.0"),
        no("nemotron_h", vllm="0.26.0"),
        no("nemotron_h", vllm="0.22.0", purpose="serve"),
        no("qwen3_next", vllm="0.22.0"),
        unknown("nemotron_h"),
    ],
)
