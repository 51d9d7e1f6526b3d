"""MoE models on vLLM's CPU platform: a refit leaves the experts in a layout that the kernel does not read.

What happens: after a refit every MoE layer computes nonsense, and nothing fails, because the shapes agree. Since vLLM 0.28.0
the CPU's MoE kernel reads the experts' weights in a packed layout. vLLM packs them when it creates the kernel, after the first
load, but not after a later load: it copies new weights into the same tensors in the layout of the checkpoint, and the kernel
reads them as packed. Before 0.28.0 the CPU's MoE layer was rebuilt from each update.

When it can go: when vLLM's update packs the experts itself. vllm-project/vllm#40390 made updates skip the steps that follow
from the first load.
"""

from quirks_core import Affected, Fact, Patch, Quirk, Severity, no, platform, purpose, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import QWEN3_MOE, parallel

QUIRK = Quirk(
    id="cpu-moe-experts-refit",
    title="A refit leaves the experts of a MoE model unpacked, and the kernel of vLLM's CPU platform reads them as packed",
    match=platform("cpu") & purpose("rollout") & Fact("model.is_moe").is_true(),
    affected=Affected("vllm", introduced="0.28.0"),
    adjustments=Patch(
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod._setup_kernel",
        wrapper="quirks_plugins.weight_sync.cpu_refit_patches:wrap_setup_kernel",
        expects=("c2f215a75b0e", "35b7060b37a3", "09fe906bda7a", "b9fc97298a23"),
        reason="vLLM packs the experts for its CPU kernel after the first load only",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#48312"), report("vllm-project/vllm/pull/40390")],
    examples=[
        yes(QWEN3_MOE, parallel(dp=2, flag=True), vllm="0.32.0", platform="cpu"),
        no(QWEN3_MOE, vllm="0.27.1", platform="cpu"),
        no(QWEN3_MOE, vllm="0.32.0", platform="cuda"),
        no(QWEN3_MOE, vllm="0.32.0", platform="cpu", purpose="eval"),
        no("qwen3", vllm="0.32.0", platform="cpu"),
        unknown(QWEN3_MOE, platform="cpu"),
    ],
    cost="packs the experts in each refit, as the first load does",
)


async def scenario(lab: Lab) -> Outcome:
    """A rollout engine that got the weights of two trainers, one after the other, generates what the second one does."""
    model = lab.checkpoint("qwen3_moe")
    second = lab.trainer(lab.checkpoint("qwen3_moe", seed=1))
    async with lab.worker(model) as worker:
        await worker.refit_async(lab.trainer(model))
        await worker.refit_async(second)
        return lab.same_tokens(await lab.greedy(worker), lab.reference(second))
