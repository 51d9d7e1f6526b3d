"""MoE models on vLLM's CPU platform: data parallelism and expert parallelism do not work.

What happens: with data parallelism the first request raises a bare NotImplementedError, because the CPU communicator has
neither ``all_gatherv`` nor ``reduce_scatterv``. With sharded experts the worker dies of SIGSEGV, because the kernel uses expert
ids that count over all ranks as indices of this rank's experts. The engine starts in all these cases. Tensor parallelism alone
works. Before vLLM 0.30 a run with sharded experts is refused as drift, because ``CPUUnquantizedExperts`` is another class
there, or does not exist.

When it can go: when vllm-project/vllm#57837 is fixed.
"""

from quirks_core import PairedRun, Patch, Quirk, Require, Severity, no, platform, report, unknown, yes
from quirks_plugins.conditions import TP, mixture, several_replicas, sharded_experts
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import QWEN3_MOE, parallel

_COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts"
_PATCHES = "quirks_plugins.moe_backend.cpu_expert_parallel_patches"
_EAGER = "engine.enforce_eager"
#: What the examples expect.
_EXCHANGE, _APPLY = ["CpuCommunicator.all_gatherv", "CpuCommunicator.reduce_scatterv"], "CPUUnquantizedExperts.apply"

QUIRK = Quirk(
    id="cpu-moe-expert-parallel",
    title="MoE with data or expert parallelism raises NotImplementedError or crashes on vLLM's CPU platform",
    match=platform("cpu") & mixture & (several_replicas | (sharded_experts & TP.above(1))),
    adjustments=[
        Patch(
            f"{_COMMUNICATOR}.all_gatherv",
            adds=f"{_PATCHES}:all_gatherv",
            reason="data-parallel MoE layers gather the tokens of all ranks, and the CPU communicator cannot",
            when=several_replicas,
        ),
        Patch(
            f"{_COMMUNICATOR}.reduce_scatterv",
            adds=f"{_PATCHES}:reduce_scatterv",
            reason="data-parallel MoE layers scatter the sum over all ranks, and the CPU communicator cannot",
            when=several_replicas,
        ),
        Patch(
            f"{_EXPERTS}.apply",
            wrapper=f"{_PATCHES}:wrap_experts_apply",
            expects=("b7be6acacedc",),
            reason="the CPU kernel takes expert ids counted over all ranks for its own and reads past its weights",
            when=sharded_experts,
        ),
        Require(
            _EAGER,
            True,
            reason="compiled, vLLM's modular MoE kernel stops at a data-dependent guard under data parallelism on CPU",
            when=several_replicas,
        ),
    ],
    severity=Severity.CRASH,
    crash=r"NotImplementedError|Segfault encountered",
    references=report("vllm-project/vllm#57837"),
    evidence=[
        PairedRun("quirks_plugins.moe_backend.cpu_moe_expert_parallel:data_parallel"),
        PairedRun("quirks_plugins.moe_backend.cpu_moe_expert_parallel:expert_parallel"),
    ],
    examples=[
        yes(QWEN3_MOE, parallel(dp=2, flag=True), platform="cpu", gives={_EAGER: True}, patches=[*_EXCHANGE, _APPLY]),
        yes(QWEN3_MOE, parallel(tp=2, flag=True), platform="cpu", patches=_APPLY),
        yes(QWEN3_MOE, parallel(tp=2, ep=2), platform="cpu", patches=_APPLY),
        yes(QWEN3_MOE, {**parallel(dp=2), _EAGER: False}, platform="cpu", refuses="data-dependent guard", patches=_EXCHANGE),
        no(QWEN3_MOE, parallel(tp=2), platform="cpu"),
        no(QWEN3_MOE, parallel(flag=True), platform="cpu"),
        no(QWEN3_MOE, parallel(dp=2), platform="cuda"),
        no("qwen3", parallel(dp=2), platform="cpu"),
        unknown(QWEN3_MOE, parallel(dp=2)),
    ],
    cost="padded gathers and full sums instead of exact ones: for tests and small models",
)


async def data_parallel(lab: Lab) -> Outcome:
    """Two data-parallel ranks generate what transformers does."""
    return await _same_as_transformers(lab, {"data_parallel_size": 2}, {"dp_strategy": "engine"})


async def expert_parallel(lab: Lab) -> Outcome:
    """Two tensor-parallel ranks with half of the experts each generate what transformers does."""
    return await _same_as_transformers(lab, {"tensor_parallel_size": 2, "enable_expert_parallel": True}, {})


async def _same_as_transformers(lab: Lab, engine: dict[str, object], parallel: dict[str, object]) -> Outcome:
    model = lab.checkpoint("qwen3_moe")
    # By itself vLLM wants a NUMA node for each tensor-parallel rank.
    values = {"purpose": "eval", "engine": engine, "parallel": parallel, "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}}
    async with lab.worker(model, values) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
