"""The wrapper that ``stop-strings-without-tokenizer`` puts around the check of a request's sampling parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

__all__ = ["wrap_verify"]


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
