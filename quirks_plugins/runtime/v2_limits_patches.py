"""The wrapper that ``v2-request-limits`` puts around the check of a request."""

from collections.abc import Callable
from typing import Any


def wrap_process_inputs(process: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `process_inputs` that refuses a request with more ids than the V2 runner has room for, or that it ignores."""

    def process_within_limits(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = process(self, *args, **kwargs)
        params = getattr(request, "sampling_params", None)
        if params is not None and self.vllm_config.use_v2_model_runner:
            _check(params, drafts=self.vllm_config.speculative_config is not None)
        return request

    return process_within_limits


def _check(params: Any, *, drafts: bool) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.worker.gpu.sample import logit_bias

    if drafts and params.logprob_token_ids:
        raise VLLMValidationError("logprob_token_ids: this engine's model runner returns none of them beside drafts")
    stops = len(params.all_stop_token_ids) if params.min_tokens > 0 else 0
    for count, limit, what in (
        (len(params.allowed_token_ids or ()), logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS, "allowed token ids"),
        (len(params.logit_bias or ()), logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS, "logit biases"),
        (stops, logit_bias.MAX_NUM_STOP_TOKEN_IDS, "stop token ids with min_tokens"),
    ):
        if count > limit:
            raise VLLMValidationError(f"{count} {what}: this engine's model runner takes {limit} at most")
