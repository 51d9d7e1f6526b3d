"""An engine over several nodes dies at its start, because its store and its queue look for a port in the same range.

What happens: before vLLM 0.29 ``RayExecutorV2`` chooses the port of the TCPStore, and binds it after the queue has taken it.

What this changes: the store looks 32 ports further, still in the range that begins at ``VLLM_PORT``.

When it can go: with vLLM 0.29, whose executor chooses no such port.
"""

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, SymbolProbe, environment, no, report, setting, unknown, yes

_RAY = {"engine.distributed_executor_backend": "ray"}
_TARGET = "vllm.v1.executor.ray_executor_v2:RayExecutorV2._select_tcpstore_port"

QUIRK = Quirk(
    id="rl-patches/store-port-race",
    title="An engine over several nodes takes one port for its store and its queue",
    flag=ModelFlag.RUNTIME,
    match=setting("engine.distributed_executor_backend").one_of("ray") & environment("VLLM_PORT").is_set(),
    affected=Affected("vllm", introduced="0.25.0", fixed="0.29.0"),
    adjustments=Patch(
        _TARGET,
        wrapper="rl_patches.wrappers:past_the_queue",
        expects="8978c9c79829",  # vLLM 0.25.1 to 0.28.0
        reason="without VLLM_PORT, ports come from the range that others take theirs from",
    ),
    severity=Severity.CRASH,
    references=[report("https://github.com/NVIDIA-NeMo/RL/issues/3350")],
    evidence=SymbolProbe(_TARGET, present_means_affected=True),
    examples=[
        yes("llama", _RAY, vllm="0.26.0", env={"VLLM_PORT": "7000"}),
        no("llama", _RAY, vllm="0.29.0", env={"VLLM_PORT": "7000"}),
        unknown("llama", _RAY, env={"VLLM_PORT": "7000"}),
    ],
)
