"""An engine with ``quantization: fp8_per_block`` quantises its experts one after the other, at each refit.

What happens: for each expert of each layer vLLM calls ``per_block_cast_to_fp8`` twice, and the GPU waits for the calls. Blocks
lie within an expert, whose rows vLLM rounds up to whole blocks, so that the experts of a layer are one matrix, and one call
gives the same bits. Refits of Qwen3-30B-A3B's shape on H200s (vLLM 0.33.0, ``SHARDED_WAYS=FP8 python benchmarks/sharded.py``)
took 4.1 s with an earlier form of this quirk, and 5.4 s without it, medians of five.

When it can go: when vLLM's ``Fp8PerBlockOnlineMoEMethod.process_weights_after_loading`` quantises all experts in one call. The
quirk does nothing on versions after 0.33.0, whose source has not been read yet: no run should be refused for the sake of speed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Kind, Patch, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import package, platform, purpose, setting
from quirks_plugins.conditions import mixture, our_worker
from quirks_plugins.runs import OURS

if TYPE_CHECKING:
    from torch import Tensor

#: Elements that are quantised together: vLLM's function copies them once.
_TOGETHER = 1 << 26
_ASKED = {**OURS, "engine.quantization": "fp8_per_block"}
_MODEL = {"model_type": "qwen3_moe", "num_experts": 8}

QUIRK = Quirk(
    id="fp8-block-experts",
    title="vLLM quantises experts to FP8 blocks one after the other, at each refit",
    kind=Kind.FEATURE,
    match=our_worker
    & purpose("rollout")
    & platform("cuda")
    & mixture
    & setting("engine.quantization").one_of("fp8_per_block")
    & package("vllm", fixed="0.33.1"),
    affected=Affected("vllm", introduced="0.28.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.quantization.online.fp8:Fp8PerBlockOnlineMoEMethod.process_weights_after_loading",
        wrapper="quirks_plugins.moe_backend.fp8_block_experts:wrap_process",
        expects=("dd95ee0b52c5", "a0d93237492a"),
        reason="no setting makes vLLM quantise several experts together",
    ),
    severity=Severity.SLOW,
    references=report("vllm-project/vllm#19020"),
    evidence=StaticProbe(
        "vllm.model_executor.layers.quantization.online.fp8",
        r"for expert in range\(num_experts\):\n\s+w13\[expert\], w13_scale\[expert\] = per_block_cast_to_fp8\(",
    ),
    examples=[
        yes(_MODEL, _ASKED, vllm="0.33.0", platform="cuda"),
        no(_MODEL, OURS, vllm="0.33.0", platform="cuda"),
        no(_MODEL, _ASKED, vllm="0.33.1", platform="cuda"),
        no("qwen3", _ASKED, vllm="0.33.0", platform="cuda"),
        unknown(_MODEL, _ASKED, platform="cuda"),
    ],
    cost="128 MB more while a layer is quantised",
)


def wrap_process(original: Callable[..., None]) -> Callable[..., None]:
    """Make vLLM quantise no expert itself, and prepare its kernel with experts that were quantised together."""

    @wraps(original)
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        rows, _ = self.weight_block_size
        is_requantized = getattr(self, "requantization_source", None) is not None
        if is_requantized or any(weight.shape[1] % rows for weight in (layer.w13_weight, layer.w2_weight)):
            original(self, layer)
            return
        experts, setup = layer.local_num_experts, self._setup_kernel

        def setup_kernel(layer: Any, *made: Any, **options: Any) -> None:
            layer.local_num_experts = experts
            w13_scale, w2_scale = (
                _cast(weight, values, self.weight_block_size)
                for weight, values in zip((layer.w13_weight, layer.w2_weight), made[:2], strict=True)
            )
            setup(layer, *made[:2], w13_scale, w2_scale, *made[4:], **options)

        layer.local_num_experts, self._setup_kernel = 0, setup_kernel
        try:
            original(self, layer)
        finally:
            layer.local_num_experts = experts
            del self._setup_kernel

    return process_weights_after_loading


def _cast(weights: Tensor, values: Tensor, block_size: list[int]) -> Tensor:
    """Writes experts [number, rows, columns] in FP8; returns the scales of their blocks."""
    import torch
    from vllm.utils.deep_gemm import per_block_cast_to_fp8

    number, rows, columns = weights.shape
    scales = []
    together = max(1, _TOGETHER // (rows * columns))
    for some, into in zip(weights.detach().split(together), values.split(together), strict=True):
        found, scale = per_block_cast_to_fp8(some.reshape(-1, columns), block_size=block_size, use_ue8m0=False)
        into.copy_(found.view(into.shape))
        scales.append(scale)
    return torch.cat(scales).view(number, rows // block_size[0], -1)
