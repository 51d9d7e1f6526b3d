"""Nemotron-H with experts (Nemotron 3 Nano) on vLLM's CPU platform: no kernel supports its experts, which have no gate.

What happens: the engine ends with "NotImplementedError: is_act_and_mul=False is supported only for CUDA, XPU and ROCm for now"
while it builds the model. The error comes from a worker process, below a page of traceback
(``vllm.model_executor.layers.fused_moe.config``). The experts of this model are two products with a squared ReLU between them;
the experts of other models have a gate there.

When it can go: when vLLM's CPU platform computes experts without a gate. vllm-project/vllm#46795 proposes it for TPUs.
"""

from quirks_core import Affected, Kind, Quirk, Refuse, Severity, StaticProbe, model_type, no, platform, report, unknown, yes
from quirks_plugins.conditions import nemotron_h_experts
from quirks_plugins.dp_ep_strategy.evidence import refused_or_started
from quirks_plugins.kit import Lab, Outcome

_NANO = {"model_type": "nemotron_h", "hybrid_override_pattern": "MEME*ME"}

QUIRK = Quirk(
    id="cpu-nongated-moe",
    title="vLLM's CPU platform has no kernel for experts without a gate, which Nemotron-H has",
    kind=Kind.RULE,
    match=platform("cpu") & model_type("nemotron_h") & nemotron_h_experts,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Refuse(
        "the experts of this model have no gate, and vLLM computes such experts on CUDA, ROCm and XPU alone",
        "take a machine with a GPU, or a Nemotron-H checkpoint without experts; engine.dtype and other settings do not help",
    ),
    severity=Severity.CRASH,
    crash="is_act_and_mul=False is supported only for",
    references=report("vllm-project/vllm/pull/46795"),
    evidence=StaticProbe("vllm.model_executor.layers.fused_moe.config", r"is_act_and_mul=False is supported only for CUDA"),
    examples=[
        yes(_NANO, vllm="0.32.0", platform="cpu", refuses="have no gate"),
        yes({"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe"]}, vllm="0.32.0", platform="cpu"),
        no(_NANO, vllm="0.32.0", platform="cuda"),
        no("nemotron_h", vllm="0.32.0", platform="cpu"),
        unknown(_NANO, vllm="0.32.0"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The run is refused, or the engine starts."""
    values = {"engine": {"load_format": "auto"}}
    return await refused_or_started(lab, lab.checkpoint("nemotron_h_moe"), values, "an engine for experts without a gate")
