"""A minimum length renormalises the logprobs of a rollout: vLLM masks EOS and stop tokens before it computes them.

What happens: with ``min_new_tokens`` the logprobs of the first tokens are too high, each by -log(1 - p(any token that ends the
sample)), compared with a trainer that computes the full softmax, and nothing warns. ``MinTokensLogitsProcessor``
(vllm/v1/sample/logits_processor/builtin.py) sets the logits of EOS and stop tokens to -inf, and ``processed_logprobs`` are
computed from the remaining tokens. With another temperature, top-p or top-k, and with ``processed_logprobs`` that the user set,
the worker only warns: set ``sampling.min_new_tokens: 0``, or mask the same tokens in the trainer.

When it can go: when trainers compute logprobs over the tokens that sampling allowed, or vLLM has a mode whose logprobs ignore
masks of single tokens (vllm-project/vllm#42259). On a GPU no paired run came to a result: model runner V2 takes at most 128
tokens that a minimum length masks, and the engine of the run that was tried had 129.
"""

from quirks_core import Kind, Quirk, Require, Severity, no, purpose, report, setting, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.kit import Lab, Outcome

_PLAIN = {"engine.generate_from_dummy": False, "sampling.temperature": 1.0, "sampling.top_p": 1.0, "sampling.top_k": -1}
_LEAST = {**_PLAIN, "sampling.min_new_tokens": 8}

_only_temperature_1 = (
    setting("sampling.temperature").one_of(1.0) & ~setting("sampling.top_p").below(1) & ~setting("sampling.top_k").above(0)
)

QUIRK = Quirk(
    id="min-tokens-renormalises",
    title="A minimum length masks the tokens that end a sample, and the logprobs of all others are renormalised",
    kind=Kind.RULE,
    match=purpose("rollout") & our_worker & setting("sampling.min_new_tokens").above(0) & _only_temperature_1,
    adjustments=Require(
        "engine.logprobs_mode",
        "raw_logprobs",
        instead_of=("raw_logits", "processed_logits"),
        reason="processed logprobs are renormalised over the tokens that a minimum length leaves; at temperature 1 raw ones "
        "are those of the full softmax",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm#42259"),
    examples=[
        yes(settings=_LEAST, gives={"engine.logprobs_mode": "raw_logprobs"}),
        yes(settings={**_LEAST, "engine.logprobs_mode": "processed_logprobs"}, gives={}),
        yes(settings={**_LEAST, "engine.logprobs_mode": "raw_logits"}, refuses="engine.logprobs_mode"),
        no(settings=_PLAIN),
        no(settings={**_LEAST, "sampling.temperature": 0.7}),
        no(settings={**_LEAST, "sampling.top_p": 0.9}),
        no(settings={**_LEAST, "sampling.top_k": 5}),
        no(settings=_LEAST, purpose="eval"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The logprobs of samples with a minimum length are those of the trainer's softmax."""
    from worker.lab.kit.lab import NEW_TOKENS

    model = lab.checkpoint("qwen3")
    # A quarter of all tokens, so that ending is likely everywhere; with the model's own end 128, the V2 runner's limit.
    ends = list(range(3, 130))
    sampling = {"ignore_eos": False, "min_new_tokens": NEW_TOKENS, "stop_token_ids": ends}
    async with lab.worker(model, {"engine": {"load_format": "auto"}, "sampling": sampling}) as worker:
        got = await lab.sample(worker)
    return lab.close_logprobs(got, lab.rescored(lab.trainer(model), got), measure="largest difference to log_softmax(logits)")
