"""Rollouts: vLLM's logprobs are those of the model, not of the distribution that was sampled from.

What happens: at any temperature except 1 the logprobs of the behaviour policy are wrong, and so is every importance ratio that
a trainer computes from them. vLLM's default, ``raw_logprobs``, computes logprobs before it applies the temperature.

From vLLM 0.28 on ``return_sampling_mask`` returns which tokens top-p and top-k kept. The quirk does not set it: vLLM takes it
on model runner V2 alone, and the trainer must read the mask.

When it can go: when ``processed_logprobs`` becomes vLLM's default.
"""

from quirks_core import Advise, Affected, Default, Kind, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_TYPED = {"engine.logprobs_mode": "processed_logprobs"}

QUIRK = Quirk(
    id="rollout-logprobs-processed",
    title="vLLM reports logprobs before temperature; a trainer needs those of the distribution that was sampled from",
    kind=Kind.RULE,
    match=purpose("rollout"),
    # Earlier engines have no such mode, or one that leaves temperature out (PrimeIntellect-ai/prime-rl#697).
    affected=Affected("vllm", introduced="0.10.2"),
    adjustments=[
        Default("engine.logprobs_mode", "processed_logprobs"),
        Advise(
            "with top_p < 1 or top_k > 0 processed logprobs are renormalised over the kept tokens; "
            "a trainer must mask its logits alike (vLLM 0.28 and later return the mask with engine.return_sampling_mask), or "
            "sample with top_p: 1 and top_k: -1",
            when=setting("sampling.top_p").below(1) | setting("sampling.top_k").above(0),
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("huggingface/trl#4159"),
        report("huggingface/trl#6789"),
        report("vllm-project/vime#64"),
        report("https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections"),
    ],
    examples=[
        yes(vllm="0.10.2", gives={"engine.logprobs_mode": "processed_logprobs"}),
        yes(settings={"engine.logprobs_mode": "raw_logprobs"}, vllm="0.32.0", gives={}),
        yes(settings={**_TYPED, "sampling.top_p": 0.9}, vllm="0.32.0", advises="renormalised over the kept tokens"),
        yes(settings={**_TYPED, "sampling.top_k": 50}, vllm="0.32.0", advises="renormalised over the kept tokens"),
        no(vllm="0.10.2rc1"),
        no(vllm="0.32.0", purpose="serve"),
        unknown(vllm="0.1.dev1+g123"),
    ],
    cost="turns off the fused top-k/top-p sampler",
)


async def scenario(lab: Lab) -> Outcome:
    """The logprobs of a rollout are those of softmax(logits / temperature), which its tokens were sampled from."""
    temperature = 0.5
    model = lab.checkpoint("qwen3")
    values = {"engine": {"load_format": "auto"}, "sampling": {"temperature": temperature}}
    async with lab.worker(model, values) as worker:
        got = await lab.sample(worker)
    expected = lab.rescored(lab.trainer(model), got, temperature)
    return lab.close_logprobs(got, expected, measure=f"largest difference to log_softmax(logits / {temperature})")
