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

from typing import TYPE_CHECKING

from quirks_core import (
    ABSENT,
    Answer,
    Example,
    Fact,
    ModelFlag,
    PairedRun,
    Patch,
    Quirk,
    Require,
    Severity,
    fix,
    platform,
    report,
    setting,
)

if TYPE_CHECKING:
    from quirks_core.testing.lab import Lab, Outcome

_COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts"
#: The source in vLLM 0.30.0 to 0.33.0, line by line.
_EXPERTS_SOURCE = (
    "b7be6acacedcfade9f72ee14e59f78e3d35dba16e3bd4c75878fb76007c4266d:"
    "07152c7f07d63f1b582c33dba4d6cd21c4579e2e9d4b74ed1b6d4d3193784fa8f4aa4b206b5e8f9b57de54f268c63f9c740f0b5266af"
    "52f5595c40cc1e64d48fb41257f1f82ec22ffed0565a1c55841f929f213162e693ee2108def9c52496edba5ec57187f01d06c357f1f8"
    "2ec22ffed0565a1c55841f929f213162e693ee2108993b599638bcdef9c5ba5ec5"
)
_PATCHES = "quirks_plugins.moe_backend.cpu_expert_parallel_patches"

_data_parallel = setting("engine.data_parallel_size").above(1)
_tensor_parallel = setting("engine.tensor_parallel_size").above(1)
#: A size that the user typed turns the flag on (quirk `ep-flag`).
_sharded_experts = setting("engine.enable_expert_parallel").is_true() | setting("parallel.expert_parallel_size").above(1)

QUIRK = Quirk(
    id="cpu-moe-expert-parallel",
    title="MoE with data or expert parallelism raises NotImplementedError or crashes on vLLM's CPU platform",
    flag=ModelFlag.MOE_BACKEND,
    match=(platform("cpu") & Fact("model.is_moe").is_true() & (_data_parallel | (_sharded_experts & _tensor_parallel))),
    adjustments=(
        Patch(
            f"{_COMMUNICATOR}.all_gatherv",
            replacement=f"{_PATCHES}:all_gatherv",
            expects=(ABSENT,),
            reason="data-parallel MoE layers gather the tokens of all ranks, and the CPU communicator cannot",
            when=_data_parallel,
        ),
        Patch(
            f"{_COMMUNICATOR}.reduce_scatterv",
            replacement=f"{_PATCHES}:reduce_scatterv",
            expects=(ABSENT,),
            reason="data-parallel MoE layers scatter the sum over all ranks, and the CPU communicator cannot",
            when=_data_parallel,
        ),
        Patch(
            f"{_EXPERTS}.apply",
            wrapper=f"{_PATCHES}:wrap_experts_apply",
            expects=(_EXPERTS_SOURCE,),
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
    evidence=(
        PairedRun("quirks_plugins.moe_backend.cpu_moe_expert_parallel:data_parallel", "live on vLLM 0.32.0"),
        PairedRun("quirks_plugins.moe_backend.cpu_moe_expert_parallel:sharded_experts", "live on vLLM 0.32.0"),
    ),
    examples=(
        Example(
            answer=Answer.YES,
            config={"model_type": "qwen3_moe", "num_experts": 8},
            settings={"engine.data_parallel_size": 2},
            platform="cpu",
        ),
        Example(
            answer=Answer.YES,
            config={"model_type": "qwen3_moe", "num_experts": 8},
            settings={"engine.tensor_parallel_size": 2, "engine.enable_expert_parallel": True},
            platform="cpu",
        ),
        Example(
            answer=Answer.YES,
            config={"model_type": "qwen3_moe", "num_experts": 8},
            settings={"engine.tensor_parallel_size": 2, "parallel.expert_parallel_size": 2},
            platform="cpu",
        ),
        Example(
            answer=Answer.NO,
            config={"model_type": "qwen3_moe", "num_experts": 8},
            settings={"engine.data_parallel_size": 2},
            platform="cuda",
        ),
        Example(answer=Answer.NO, config={"model_type": "qwen3"}, settings={"engine.data_parallel_size": 2}, platform="cpu"),
        Example(
            answer=Answer.UNKNOWN,
            config={"model_type": "qwen3_moe", "num_experts": 8},
            settings={"engine.data_parallel_size": 2},
        ),
    ),
    cost="padded gathers and full sums instead of exact ones: for tests and small models",
    since="0.1.0",
)


async def data_parallel(lab: Lab) -> Outcome:
    """Two data-parallel ranks generate what transformers does."""
    return await _same_as_transformers(lab, {"data_parallel_size": 2})


async def sharded_experts(lab: Lab) -> Outcome:
    """Two tensor-parallel ranks with half of the experts each generate what transformers does."""
    return await _same_as_transformers(lab, {"tensor_parallel_size": 2, "enable_expert_parallel": True})


async def _same_as_transformers(lab: Lab, engine: dict[str, object]) -> Outcome:
    model = lab.checkpoint("qwen3_moe")
    # By itself vLLM wants a NUMA node for each tensor-parallel rank.
    values = {"purpose": "eval", "engine": engine, "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}}
    async with lab.worker(model, values) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
