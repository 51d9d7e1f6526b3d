"""MoE models on vLLM's CPU platform: a refit leaves the experts in a layout that the kernel does not read.

What happens: since vLLM 0.28.0 the CPU's MoE kernel takes the experts' weights in a packed layout. They are packed when the
kernel is made, after the first load, and not after a later one: new weights are copied into the same tensors in the layout of
the checkpoint, and the kernel takes them for packed. Shapes agree, so nothing fails, but every MoE layer computes nonsense.
Before 0.28.0 the CPU's MoE layer was built anew from each update.

What this changes: an update packs the experts as the first load does. No setting does that.

When it can go: when vLLM's update packs the experts itself. Nobody has reported it, as far as we can see;
vllm-project/vllm#48312 collects such defects. vllm-project/vllm#40390 made updates skip what follows from the first load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import (
    Affected,
    Answer,
    Example,
    Fact,
    ModelFlag,
    PairedRun,
    Patch,
    Quirk,
    Severity,
    platform,
    purpose,
    report,
)

if TYPE_CHECKING:
    from quirks_core.testing.lab import Lab, Outcome

#: The source in vLLM 0.28.0 to 0.29.0, 0.30.0, 0.31.0 to 0.32.0, and 0.33.0, line by line.
_SETUP_SOURCES = (
    (
        "c2f215a75b0e01668a52b090ee418efe0a1e9e85cd41e3036ef96c147b38648b:"
        "7a37787f07d66e1e9227d12821c4575266afab85fbffed9ae4434f56cadc5a5d9869f92fba5ec5d5015233adb6985e2aff0dff4ba3f2"
        "ffb6b82ca243575f6d8b1cf9af0424e3b0c442a73eebb62fc56429ecaf02fede5b951e56f08dc2b18ea9135a240948adc6a3e5a5eff0"
        "35b4af36f9a197148cba5ec5e3b0c4fad67eb2db2491141313a569137123deff5cc90cd6"
    ),
    (
        "35b7060b37a3cecbb7c79589834d2be04e5843a8f35ba490fb57a138d94c1fd4:"
        "7a37787f07d66e1e9227d12821c4575266afab85fbffed9ae4434f56cadc5a5d9869f92fba5ec5d5015233adb6985e2aff0dff4ba3f2"
        "ffb6b82ca243575f6d8b1cf9af0424e3b0c442a73eebb62fc56429ecaf02fede5b951e560aa501e3b0c4fad67eb2db2491141313a569"
        "137123deff5cde9dc8c90cd6"
    ),
    (
        "09fe906bda7a750fa4f5ff61f9b9fb8e9c2eb8423da0d5ea1d3332af99f577cd:"
        "7a37787f07d66e1e9227d12821c4575266afab85fbffed9ae4434f56cadc5a5d9869f92fc45816ba5ec5d5015233adb6985e2aff0dff"
        "4ba3f2ffb6b82ca243575f6d8b1cf9af0424e3b0c442a73eebb62fc56429ecaf02fede5b951e560aa501e3b0c424a8db8430f6e79f44"
        "5fdf7a0eb8fede9dc8c90cd6"
    ),
    (
        "b9fc97298a238cccaf1e2d3f769505e68c18a4a95ff55584f9e3febe00c41a59:"
        "7a37787f07d66e1e9227d12821c4575266afab85fbffed9ae4434f56cadc5a5d9869f92fc45816ba5ec5575f6d3f763b7163e1e3b0c4"
        "42a73eebb62fc56429ecaf02fede5b951e560aa501e3b0c424a8db8430f6e79f445fdf7a0eb8fede9dc8c90cd6"
    ),
)
_MOE = {"model_type": "qwen3_moe", "num_experts": 8}

QUIRK = Quirk(
    id="cpu-moe-experts-refit",
    title="A refit leaves the experts of a MoE model unpacked, and the kernel of vLLM's CPU platform reads them as packed",
    flag=ModelFlag.WEIGHT_SYNC,
    match=platform("cpu") & purpose("rollout") & Fact("model.is_moe").is_true(),
    affected=(Affected("vllm", introduced="0.28.0"),),
    adjustments=(
        Patch(
            "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod._setup_kernel",
            wrapper="quirks_plugins.weight_sync.cpu_refit_patches:wrap_setup_kernel",
            expects=_SETUP_SOURCES,
            reason="vLLM packs the experts for its CPU kernel after the first load only",
        ),
    ),
    severity=Severity.WRONG_OUTPUT,
    references=(
        report("https://github.com/vllm-project/vllm/issues/48312"),
        report("https://github.com/vllm-project/vllm/pull/40390"),
    ),
    evidence=(PairedRun("quirks_plugins.weight_sync.cpu_moe_experts_refit:scenario", "live on vLLM 0.32.0"),),
    examples=(
        Example(answer=Answer.YES, config=_MOE, packages={"vllm": "0.32.0"}, platform="cpu"),
        Example(answer=Answer.NO, config=_MOE, packages={"vllm": "0.27.1"}, platform="cpu"),
        Example(answer=Answer.NO, config=_MOE, packages={"vllm": "0.32.0"}, platform="cuda"),
        Example(answer=Answer.NO, config=_MOE, packages={"vllm": "0.32.0"}, platform="cpu", purpose="eval"),
        Example(answer=Answer.NO, config={"model_type": "qwen3"}, packages={"vllm": "0.32.0"}, platform="cpu"),
        Example(answer=Answer.UNKNOWN, config=_MOE, platform="cpu"),
    ),
    cost="packs the experts in each refit, as the first load does",
    since="0.1.0",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, generates what the second one does."""
    model = lab.checkpoint("qwen3_moe")
    second = lab.trainer(lab.checkpoint("qwen3_moe", seed=1))
    async with lab.worker(model) as worker:
        await worker.refit_async(lab.trainer(model))
        await worker.refit_async(second)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(second))
