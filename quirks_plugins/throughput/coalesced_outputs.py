"""Rollouts: the engine core sends an output of every request after every step, also to callers that read only the last one.

What happens: rollouts with logprobs generate fewer tokens per second than without. On an H200 (vLLM 0.26.0, a Qwen3-1.7B shape,
256 requests of 128 + 256 tokens) logprobs cost a rollout 23 % of its tokens per second, and the front end spent 38 % of its
time on decoding the engine core's messages. ``RequestOutputKind.FINAL_ONLY`` saves work only in the front end: the engine core
still sends each request's new token after each step, with three small arrays for logprobs. A request is held only if our worker
marked it, and never if it has stop strings, prompt logprobs or logprobs of other tokens than the sampled one, streams its
input, or gets something else in each output. With ``engine.disable_log_stats: false`` nothing is held.

When it can go: when vLLM's engine core sends one output for a final-only request. The quirk does nothing after 0.33.0, whose
source has not been read yet, because a run should not be refused for the sake of speed.
"""

from collections import Counter
from typing import Any

from quirks_core import Affected, Kind, Patch, Quirk, Severity, no, package, purpose, report, unknown, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import OURS

_CORE = "vllm.v1.engine.core"
_PATCHES = "quirks_plugins.throughput.coalesced_outputs_patches"
_PATCHED = [
    "Scheduler.update_from_output",
    "EngineCoreProc._send_abort_outputs",
    "EngineCore.generated_so_far",
    "LogprobsProcessor._update_sample_logprobs",
]

QUIRK = Quirk(
    id="coalesced-outputs",
    title="vLLM sends every token of a rollout across the process border by itself, and its logprob with it",
    kind=Kind.FEATURE,
    match=our_worker & purpose("rollout") & package("vllm", fixed="0.33.1"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Patch(
            "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
            wrapper=f"{_PATCHES}:wrap_update_from_output",
            expects=(
                "45118edde372",
                "8e59cc7d02e8",
                "2c47efe8717a",
                "73d8c66a47d7",
                "ce2f3988a274",
                "3a54ee90e15a",
                "db85c2ebefbc",
            ),
            reason="no setting keeps the engine core from sending an output of each request after each step",
        ),
        Patch(
            f"{_CORE}:EngineCoreProc._send_abort_outputs",
            wrapper=f"{_PATCHES}:wrap_send_abort_outputs",
            expects=("5eca1110e37d",),
            reason="requests that the engine core ends come back with the tokens that they have",
        ),
        Patch(
            f"{_CORE}:EngineCore.set_weight_version",
            wrapper=f"{_PATCHES}:wrap_set_weight_version",
            expects=("f7760f61faab",),
            reason="tokens that are held keep the label of the weights that made them",
            when=package("vllm", introduced="0.27.0"),
        ),
        Patch(
            f"{_CORE}:EngineCore.generated_so_far",
            adds=f"{_PATCHES}:generated_so_far",
            reason="the front end cannot count tokens that are held",
        ),
        Patch(
            "vllm.v1.engine.logprobs:LogprobsProcessor._update_sample_logprobs",
            wrapper=f"{_PATCHES}:wrap_update_sample_logprobs",
            expects=("0d86bde8f1cc", "51deea0e95a2"),
            reason="the front end appends the logprobs of an output token by token, also if it has hundreds of them",
        ),
    ],
    severity=Severity.SLOW,
    references=report("https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/core/sched/scheduler.py#L2261"),
    examples=[
        yes("qwen3", OURS, vllm="0.33.0", patches=[*_PATCHED, "EngineCore.set_weight_version"]),
        yes("qwen3_moe", OURS, vllm="0.26.0", platform="cuda", patches=_PATCHED),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", OURS, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", OURS, vllm="0.25.1"),
        no("qwen3", OURS, vllm="0.33.1"),
    ],
    cost="8 bytes of the engine core's memory for each held token, beside its id",
)


async def scenario(lab: Lab) -> Outcome:
    """Every request of a rollout reaches the front end as one output, with the tokens that transformers generates."""
    model = lab.checkpoint("qwen3")
    arrived: Counter[str] = Counter()
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        processor = lab.engine(worker).output_processor
        process = processor.process_outputs

        def counted(outputs: list[Any], *args: Any, **named: Any) -> Any:
            arrived.update(output.request_id for output in outputs)
            return process(outputs, *args, **named)

        processor.process_outputs = counted
        same = lab.same_tokens(await lab.greedy(worker), lab.reference(model))
    most = max(arrived.values())
    measure = "most outputs of one request that crossed the process border; greedy tokens equal to transformers'"
    return Outcome(same.passed and most == 1, measure, f"{most}; {same.got}", f"1; {same.expected}")
