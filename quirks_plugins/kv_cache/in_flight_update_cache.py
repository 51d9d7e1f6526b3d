"""A weight update while requests run either recomputes their KV cache or leaves keys and values of the old weights in it.

What happens: if the KV cache is kept, new queries attend to keys and values of the old weights, and no trainer can compute the
logprobs after the update again. If it is dropped, every request in flight is computed again from its first token, and its
further tokens are those of the new weights. vLLM drops by default (``clear_cache=True``). PipelineRL and prime-rl keep the
cache, because recomputation costs as much as the prompts and everything generated so far. In NVIDIA-NeMo/RL#3839 the trainer's
own switch had no effect for a while, and nothing showed it.

Evidence: none, because the quirk changes nothing.

When it can go: never; it is a choice, not a workaround.
"""

from quirks_core import Advise, Kind, Quirk, Severity, no, purpose, report, setting, typed, yes

QUIRK = Quirk(
    id="in-flight-update-cache",
    title="Requests that outlive a weight update attend to what the old weights left in the KV cache",
    kind=Kind.RULE,
    match=purpose("rollout") & typed("refit.clear_cache") & setting("refit.clear_cache").one_of(False),
    adjustments=Advise(
        "refit.clear_cache is false: requests in flight at an update go on with keys and values of the old weights, so "
        "their later logprobs are no single policy's, and a trainer cannot compute them again; train on those that were "
        "sampled, or set it to true"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#32103"),
        report("vllm-project/vllm/pull/57970"),
        report("NVIDIA-NeMo/RL/pull/3839"),
        report("pytorch/torchtitan/pull/4761"),
        report("https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"),
    ],
    examples=[
        yes(settings={"refit.clear_cache": False}, advises="keys and values of the old weights"),
        no(settings={"refit.clear_cache": True}),
        no(settings={"refit.clear_cache": False}, purpose="serve"),
    ],
)
