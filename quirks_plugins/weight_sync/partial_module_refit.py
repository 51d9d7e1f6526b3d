"""Refits that send only a part of a fused layer: the other parts become whatever was in memory.

What happens: after an update that leaves tensors out (frozen ones, or all but those that a merged LoRA adapter changed), the
policy generates garbage or NaN. One layer of vLLM holds several of a checkpoint's tensors: q, k and v in one, gate and up in
another. In a layerwise reload the first tensor that arrives allocates the whole layer in uninitialised memory
(``materialize_meta_tensor``), and ``finalize_layerwise_processing`` processes it with the parts that arrived. Padding is lost
in the same way: where a kernel needs a quantised layer larger than it is in the checkpoint, a refit pads it with garbage. Of
quantised layers and most MoE layers the trainer must send all tensors: a kernel has rearranged their old values beyond
recovery, so that such a layer starts from zeros. Our own worker refuses partial updates of fused layers anyway.

When it can go: when vLLM's layerwise reload keeps the old values. vllm-project/vllm#50523 fills the memory with zeros; in its
figures, a refit of gpt-oss-20b on an H100 changed 138 of 144 padded tensors. Buffers are left as they are
(``apertus-xielu-buffers``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import our_worker, quantized
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import OURS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUIRK = Quirk(
    id="partial-module-refit",
    title="A refit of a part of a fused layer fills the rest, and a layer's padding, with uninitialised memory",
    match=purpose("rollout") & (~our_worker | quantized | setting("engine.quantization").is_set()),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.reload.layerwise:_layerwise_process",
        wrapper="quirks_plugins.weight_sync.partial_layer_patches:wrap_layerwise_process",
        expects=("4932d500de0e", "58c5e736d6c7", "c83b72815750", "c233a11758d5"),
        reason="what is not loaded into a layer stays uninitialised memory",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/50523"),
        report("vllm-project/vllm#48312"),
        report("PrimeIntellect-ai/prime-rl/pull/2714"),
    ],
    evidence=StaticProbe("vllm.model_executor.model_loader.reload.meta", r"tensor = torch\.empty_strided\("),
    examples=[
        yes("qwen3", vllm="0.33.0"),
        yes({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, OURS, vllm="0.32.0"),
        yes("qwen3", {**OURS, "engine.quantization": "fp8"}, vllm="0.32.0"),
        no("qwen3", OURS, vllm="0.32.0"),
        no("qwen3", vllm="0.15.1"),
        no("qwen3", vllm="0.32.0", purpose="serve"),
        unknown("qwen3"),
    ],
    cost="one copy of each layer that is sent in part, or padded",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that got new weights for q and gate alone generates what a model does that has these and the old others.

    What a program does that starts its own engine, because our worker refuses such a refit: plain vLLM and its own
    ``reload_weights``, with the plan from the library door.
    """
    model = lab.checkpoint("qwen3")
    trainer, parts = lab.trainer(model), lab.folder / "parts"
    _replace_parts(trainer, lab.trainer(lab.checkpoint("qwen3", seed=1)), parts)
    expected = lab.reference(trainer)
    os.environ["MODEL_QUIRKS_SET"] = "refit.finite=false"  # what is not sent may be NaN, and refused
    with lab.llm(model) as llm:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(parts)})
        return lab.same_tokens(lab.greedy_of(llm), expected)


def _replace_parts(trainer: PreTrainedModel, second: PreTrainedModel, folder: Path) -> None:
    """Gives a model the other's weights of q and gate, and writes these into a folder."""
    from safetensors.torch import save_file

    parts = {
        name: tensor for name, tensor in second.state_dict().items() if name.endswith(("q_proj.weight", "gate_proj.weight"))
    }
    trainer.load_state_dict(parts, strict=False)
    folder.mkdir(exist_ok=True)
    save_file(parts, folder / "model.safetensors", metadata={"format": "pt"})
