"""The wrapper that ``prompt-logprobs-drafts`` puts around a step of vLLM's V1 model runner."""

from collections.abc import Callable
from typing import Any

__all__ = ["wrap_sample_tokens"]


def wrap_sample_tokens(sample: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a `sample_tokens` that keeps the hidden states of prompts from the drafter's CUDA graph."""

    def sample_with_own_states(self: Any, grammar_output: Any) -> Any:
        state = self.execute_model_state
        if state is not None and self.num_prompt_logprobs and state.hidden_states is not None:
            self.execute_model_state = state._replace(hidden_states=state.hidden_states.clone())
        return sample(self, grammar_output)

    return sample_with_own_states
