"""``NCCL_CUMEM_ENABLE`` must be the same for trainer and engine where weights are sent over NCCL.

What happens: the first weight update fails or hangs where one side has 0 and the other does not. vLLM set the variable to 0 for
itself for a time and trainers copied that (NovaSky-AI/SkyRL#143); vLLM 0.16.0 and newer leave it alone, so that a value that is
typed for the engine must be given to the trainer as well.

When it can go: when NCCL compares such settings as it makes a group.

Evidence: NeMo RL's and SkyRL's rule; ``NCCL_CUMEM_ENABLE`` was looked for in vLLM 0.16.0, 0.20.0, 0.26.0 and 0.33.0.
"""

from quirks_core import Advise, Kind, Quirk, Severity, environment, no, purpose, report, setting, yes

_NAME = "NCCL_CUMEM_ENABLE"

QUIRK = Quirk(
    id="nccl-cumem-sides",
    title="NCCL_CUMEM_ENABLE differs between trainer and engine, and weight updates over NCCL hang",
    kind=Kind.RULE,
    match=purpose("rollout") & environment(_NAME).is_set() & setting("refit.transport").one_of("collective"),
    adjustments=Advise(f"set {_NAME} to the same value for the trainer: NCCL groups of both sides hang or fail if it differs"),
    severity=Severity.CRASH,
    references=[report("NovaSky-AI/SkyRL/pull/143"), report("verl-project/verl/pull/5522")],
    examples=[
        yes("qwen3", {"refit.transport": "collective"}, env={_NAME: "0"}, advises="the same value"),
        no("qwen3", {"refit.transport": "ipc_zmq"}, env={_NAME: "0"}),
        no("qwen3", {"refit.transport": "collective"}),
        no("qwen3", {"refit.transport": "collective"}, env={_NAME: "0"}, purpose="eval"),
    ],
)
