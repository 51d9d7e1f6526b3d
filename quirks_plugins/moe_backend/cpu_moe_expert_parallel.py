"""MoE models on vLLM's CPU platform: data parallelism and expert parallelism do not work.

What happens: with data parallelism the first request raises a bare NotImplementedError, because the CPU communicator has
neither ``all_gatherv`` nor ``reduce_scatterv``. With sharded experts the kernel takes ids counted over all ranks for its own
and the worker dies of SIGSEGV. The engine starts in all these cases (with eager execution and an explicit KV cache size there
is no warm-up); `EngineDeadError` comes with the first request. Tensor parallelism alone works.

What this changes: three patched attributes, and eager execution under data parallelism (compiled, vLLM's own modular kernel
stops at a data-dependent guard). Lower rungs do not help: no setting selects another communicator or kernel on CPU.

When it can go: when vllm-project/vllm#47778 or its like is merged; a target that changes or appears is refused as drift.
"""

from __future__ import annotations

from quirks_core import ABSENT, Fact, ModelFlag, PairedRun, Patch, Quirk, Require, Severity, fix, platform, report, setting

_COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts"
_PATCHES = "quirks_plugins.moe_backend.cpu_expert_parallel_patches"

_data_parallel = setting("engine.data_parallel_size").above(1)
_tensor_parallel = setting("engine.tensor_parallel_size").above(1)
_sharded_experts = setting("engine.enable_expert_parallel").is_true()

QUIRK = Quirk(
    id="cpu-moe-expert-parallel",
    title="MoE with data or expert parallelism raises NotImplementedError or crashes on vLLM's CPU platform",
    flag=ModelFlag.MOE_BACKEND,
    match=(platform("cpu") & Fact("model.is_moe").is_true() & (_data_parallel | (_sharded_experts & _tensor_parallel))),
    adjustments=(
        Patch(
            f"{_COMMUNICATOR}.all_gatherv",
            f"{_PATCHES}:wrap_all_gatherv",
            fingerprints=(ABSENT,),
            reason="data-parallel MoE layers gather the tokens of all ranks, and the CPU communicator cannot",
            when=_data_parallel,
        ),
        Patch(
            f"{_COMMUNICATOR}.reduce_scatterv",
            f"{_PATCHES}:wrap_reduce_scatterv",
            fingerprints=(ABSENT,),
            reason="data-parallel MoE layers scatter the sum over all ranks, and the CPU communicator cannot",
            when=_data_parallel,
        ),
        Patch(
            f"{_EXPERTS}.apply",
            f"{_PATCHES}:wrap_experts_apply",
            fingerprints=("b7be6acacedcfade9f72ee14e59f78e3d35dba16e3bd4c75878fb76007c4266d",),  # vLLM 0.32.0
            reason="the CPU kernel takes expert ids counted over all ranks for its own and reads past its weights",
            when=_sharded_experts,
        ),
        Require(
            "engine.enforce_eager",
            True,
            reason="compiled, vLLM's modular MoE kernel stops at a data-dependent guard under data parallelism on CPU",
            when=_data_parallel,
        ),
    ),
    severity=Severity.CRASH,
    references=(
        report("https://github.com/vllm-project/vllm/issues/57837"),
        fix("https://github.com/vllm-project/vllm/pull/47778"),
    ),
    evidence=(PairedRun("tests/engine/test_moe_engine.py", "live on vLLM 0.32.0"),),
    cost="padded gathers and full sums instead of exact ones: for tests and small models",
    since="0.1.0",
)
