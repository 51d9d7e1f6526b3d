"""Mamba-2 layers before vLLM 0.26: an update through vLLM's own reload leaves some of their tensors uninitialised.

What happens: NaN or garbage from the first update on, also if the same weights are sent again. Up to 0.21 the reload treats
``conv_weights``, a view of the convolution, as a tensor of its own, and copies uninitialised memory over the weight
(vllm-project/vllm#42481); on 0.22 the load of ``D`` was dropped (PrimeIntellect-ai/prime-rl#2714), and Nemotron-Nano still
changed in July (vllm-project/vllm#48284). Trainers that call the model's own ``load_weights`` are not concerned.

When it can go: when vLLM 0.25 is no longer supported. ``MambaMixer2`` and the reload were read in 0.22.0, 0.25.0 and 0.26.0;
from 0.26.0 on refits of such models are tested here.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, fix, model_type, no, purpose, report, unknown, yes

QUIRK = Quirk(
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
        no("nemotron_h", vllm="0.26.0"),
        no("nemotron_h", vllm="0.22.0", purpose="serve"),
        unknown("nemotron_h"),
    ],
)
