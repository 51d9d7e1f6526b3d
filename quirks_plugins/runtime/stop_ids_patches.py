"""The wrapper that ``stop-ids-vocabulary`` puts around the check of a request's sampling parameters."""

from collections.abc import Callable
from typing import Any


def wrap_verify(verify: Callable[..., None]) -> Callable[..., None]:
    """Returns a `SamplingParams.verify` that refuses stop ids outside of the model's vocabulary."""

    def verify_stop_ids(self: Any, model_config: Any, *args: Any, **kwargs: Any) -> None:
        size = model_config.get_vocab_size()
        if outside := [token for token in self.stop_token_ids or () if not 0 <= token < size]:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(f"stop_token_ids {outside} are outside of the model's vocabulary of {size} tokens")
        verify(self, model_config, *args, **kwargs)

    return verify_stop_ids
