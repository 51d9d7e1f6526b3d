"""Without a tokenizer, stop strings and bad words are ignored: every sample runs to its length limit.

What happens: with ``skip_tokenizer_init``, a request's ``stop`` strings never match, and its ``bad_words`` are sampled. Nothing
is logged, and the samples end with "length". Trainers that exchange token ids turn the tokenizer off, and pass on the sampling
parameters of a recipe. Stop strings are compared with the text that the detokenizer writes, and bad words become token ids by
the tokenizer (``SamplingParams.update_from_tokenizer``). Without a tokenizer both are passed over. Only structured outputs are
refused in this case.

When it can go: with vllm-project/vllm#46310, which is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, fix, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

_SKIP = "engine.skip_tokenizer_init"

QUIRK = Quirk(
    id="stop-strings-without-tokenizer",
    title="With skip_tokenizer_init, stop strings and bad words have no effect, silently",
    match=setting(_SKIP).is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.sampling_params:SamplingParams.verify",
        wrapper="quirks_plugins.tokenizer.stop_strings_without_tokenizer:wrap_verify",
        expects=("6d0abb01e1b9", "e8539372ce55", "68f947da8220", "a82519c69a65", "d5f185496255"),
        reason="stop strings are parameters of a request, which no setting of the engine checks",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[fix("vllm-project/vllm/pull/46310"), report("vllm-project/vllm/pull/3748")],
    examples=[
        yes("qwen3", {_SKIP: True}, vllm="0.32.0", patches="SamplingParams.verify"),
        yes("qwen3", {_SKIP: True}, vllm="0.33.0", purpose="serve"),
        no("qwen3", {_SKIP: False}, vllm="0.32.0"),
        unknown("qwen3", {_SKIP: True}),
    ],
)


def wrap_verify(verify: Callable[..., None]) -> Callable[..., None]:
    """Returns a `SamplingParams.verify` that refuses what needs a tokenizer where there is none."""

    def verify_without_tokenizer(
        self: SamplingParams, model_config: Any, speculative_config: Any, structured_outputs_config: Any, tokenizer: Any
    ) -> None:
        if tokenizer is None:
            for name, remedy in (("stop", "stop_token_ids"), ("bad_words", "logit_bias")):
                if getattr(self, name):
                    from vllm.exceptions import VLLMValidationError

                    raise VLLMValidationError(
                        f"{name} needs a tokenizer, and this engine has none (skip_tokenizer_init): use {remedy}, "
                        "or start the engine with its tokenizer"
                    )
        verify(self, model_config, speculative_config, structured_outputs_config, tokenizer)

    return verify_without_tokenizer


async def scenario(lab: Lab) -> Outcome:
    """A request with stop strings is refused by an engine without a tokenizer; otherwise it stops at none of them."""
    import string

    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    from worker.lab.kit.lab import NEW_TOKENS, PROMPTS

    measure, expected = "a request whose stop strings are all letters and digits, without a tokenizer", "refused"
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, stop=list(string.ascii_letters + string.digits))
    values = {"engine": {"load_format": "auto", "skip_tokenizer_init": True}}
    async with lab.worker(lab.checkpoint("qwen3"), values) as worker:
        try:
            async for output in lab.engine(worker).generate({"prompt_token_ids": list(PROMPTS[0])}, params, "stop"):
                result = output.outputs[0]
        except VLLMValidationError as error:
            return Outcome("stop" in str(error), measure, expected, expected)
    return Outcome(False, measure, f"{len(result.token_ids)} tokens, finished by {result.finish_reason!r}", expected)
