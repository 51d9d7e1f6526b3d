"""Workers on a second node look for a port at the same moment, and all but one die with "Address already in use".

What happens: before vLLM 0.28 the message queue asks for a free port, and binds it several statements later. Workers of one
node that all begin at ``VLLM_PORT`` find the same one.

What this changes: a queue that lost its port is made once more; by then the port is seen to be taken.

When it can go: with vLLM 0.28, which lets the system choose the port while it binds.
"""

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, StaticProbe, environment, no, report, setting, unknown, yes

_RAY = {"engine.distributed_executor_backend": "ray"}

QUIRK = Quirk(
    id="rl-patches/queue-port-race",
    title="Queues of workers on a second node lose a race for their port",
    flag=ModelFlag.RUNTIME,
    match=setting("engine.distributed_executor_backend").one_of("ray") & environment("VLLM_PORT").is_set(),
    affected=Affected("vllm", introduced="0.25.0", fixed="0.28.0"),
    adjustments=Patch(
        "vllm.distributed.device_communicators.shm_broadcast:MessageQueue.__init__",
        wrapper="rl_patches.wrappers:made_once_more",
        expects="138a4e83f1bd",  # vLLM 0.25.1 to 0.27.1
        reason="without VLLM_PORT, ports come from the range that others take theirs from",
    ),
    severity=Severity.CRASH,
    references=[report("https://github.com/NVIDIA-NeMo/RL/issues/3350")],
    evidence=StaticProbe(
        "vllm.distributed.device_communicators.shm_broadcast",
        r"remote_subscribe_port = get_open_port\(\)",
        found_means_affected=True,
    ),
    examples=[
        yes("llama", _RAY, vllm="0.26.0", env={"VLLM_PORT": "7000"}),
        no("llama", _RAY, vllm="0.28.0", env={"VLLM_PORT": "7000"}),
        unknown("llama", _RAY, env={"VLLM_PORT": "7000"}),
    ],
)
