"""``VLLM_DP_*`` variables make an asynchronous engine wait for ranks that do not exist, or end it at the start.

What happens: with a MoE model the engine waits for ranks that nothing starts, or ends in a bare ``AssertionError`` of its
client; with a dense model it ends in a ``ValueError``. The variables are meant for *synchronous* engines, one process per rank,
and every engine whose own data-parallel size is 1 reads them. Above 1 vLLM reads the port alone. The attempt of
NVIDIA-NeMo/RL#1495 set them and had to patch vLLM's client.

When it can go: when the asynchronous engine no longer reads them.
"""

from quirks_core import Kind, Quirk, Refuse, Severity, StaticProbe, environment, no, report, setting, yes
from quirks_plugins.conditions import several_replicas, will_be_one_group
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import parallel

_any_is_set = (
    environment("VLLM_DP_SIZE").is_set()
    | environment("VLLM_DP_RANK").is_set()
    | environment("VLLM_DP_RANK_LOCAL").is_set()
    | environment("VLLM_DP_MASTER_IP").is_set()
    | environment("VLLM_DP_MASTER_PORT").is_set()
)
#: Independent engines have a data-parallel size of 1 each.
_one_engine_of_several = several_replicas & will_be_one_group
_ASYNC, _SYNC = parallel(asynchronous=True), parallel(asynchronous=False)

QUIRK = Quirk(
    id="dp-environment",
    title="VLLM_DP_* variables make the asynchronous engine a rank of a group that nobody forms",
    kind=Kind.RULE,
    match=setting("engine.async_engine").is_true() & ~_one_engine_of_several & _any_is_set,
    adjustments=Refuse(
        "VLLM_DP_* variables are for synchronous engines: an asynchronous one takes itself for a rank of a group without a "
        "coordinator, and hangs or dies",
        "unset VLLM_DP_SIZE, VLLM_DP_RANK, VLLM_DP_RANK_LOCAL, VLLM_DP_MASTER_IP and VLLM_DP_MASTER_PORT, and set "
        "engine.data_parallel_size (with parallel.dp_strategy: actors or engine) instead",
    ),
    severity=Severity.CRASH,
    crash=r"Offline data parallel mode is not supported/useful for dense models",
    references=report("NVIDIA-NeMo/RL/pull/1495"),
    evidence=StaticProbe("vllm.config.parallel", r"self\.data_parallel_size = envs\.VLLM_DP_SIZE"),
    examples=[
        *(
            yes(settings=_ASYNC, env={f"VLLM_DP_{name}": "1"}, refuses=f"VLLM_DP_{name}")
            for name in ("SIZE", "RANK", "RANK_LOCAL", "MASTER_IP", "MASTER_PORT")
        ),
        no(settings=_SYNC, env={"VLLM_DP_SIZE": "2", "VLLM_DP_RANK": "0"}),
        no(settings=_ASYNC),
        yes("qwen3", parallel(asynchronous=True, dp=2), env={"VLLM_DP_SIZE": "2"}),
        no(settings=parallel(asynchronous=True, dp=2, strategy="engine"), env={"VLLM_DP_MASTER_IP": "10.0.0.1"}),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An asynchronous engine that takes itself for a rank is refused before it starts, or starts."""
    from quirks_core.plan.records import RefusedError

    measure, expected = "the asynchronous engine with VLLM_DP_SIZE=2", "refused before the engine starts, or it starts"
    # A dense model: with a MoE, the engine would wait for the other rank until its time limit.
    values = {"env": {"VLLM_DP_SIZE": "2", "VLLM_DP_RANK": "0"}}
    try:
        async with lab.worker(lab.checkpoint("qwen3"), values):
            return Outcome(True, measure, "the engine starts", expected)
    except RefusedError as error:
        return Outcome(True, measure, f"refused: {error.refusals[0].reason}", expected)
