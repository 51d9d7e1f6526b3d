"""The wrappers that ``logprob-token-ids-rows`` and ``speculative-logprob-token-ids`` put around vLLM's V1 samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.v1.outputs import LogprobsTensors, SamplerOutput
    from vllm.v1.sample.metadata import SamplingMetadata

_Rows = Mapping[int, list[int]]


def wrap_sampler(forward: Callable[..., SamplerOutput]) -> Callable[..., SamplerOutput]:
    """Returns a `Sampler.forward` that gives each request of a batch the logprobs that it asked for."""

    def per_request(
        self: Any, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any
    ) -> SamplerOutput:
        top = sampling_metadata.max_num_logprobs
        if not sampling_metadata.logprob_token_ids or not top or top < 0:
            return forward(self, logits, sampling_metadata, *args, **kwargs)

        def gather(logprobs: torch.Tensor, rows: dict[int, list[int]], sampled: torch.Tensor) -> LogprobsTensors:
            specific = type(self).gather_specific_token_logprobs(self, logprobs, rows, sampled)
            return _put(specific, rows, self.gather_logprobs(logprobs, top, token_ids=sampled))

        self.gather_specific_token_logprobs = gather
        try:
            return forward(self, logits, sampling_metadata, *args, **kwargs)
        finally:
            del self.gather_specific_token_logprobs

    return per_request


def wrap_rejection_sampler(forward: Callable[..., SamplerOutput]) -> Callable[..., SamplerOutput]:
    """Returns a `RejectionSampler.forward` that knows ``logprob_token_ids``."""

    def per_request(
        self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: SamplingMetadata
    ) -> SamplerOutput:
        ids = sampling_metadata.logprob_token_ids
        if not ids:
            return forward(self, metadata, draft_probs, logits, sampling_metadata)
        sampler = self.sampler
        positions = metadata.max_spec_len + 1

        def gather(logprobs: torch.Tensor, top: int, token_ids: torch.Tensor) -> LogprobsTensors:
            rows = {request * positions + at: wanted for request, wanted in ids.items() for at in range(positions)}
            specific = type(sampler).gather_specific_token_logprobs(sampler, logprobs, rows, token_ids)
            return _put(specific, rows, type(sampler).gather_logprobs(logprobs, top, token_ids))

        # The full logits of the last token are needed here, and not the logprobs of some ids.
        plain = replace(sampling_metadata, logprob_token_ids=None, max_num_logprobs=sampling_metadata.max_num_logprobs or 0)
        sampler.gather_logprobs = gather
        try:
            return forward(self, metadata, draft_probs, logits, plain)
        finally:
            del sampler.gather_logprobs

    return per_request


def _put(specific: LogprobsTensors, rows: _Rows, top: LogprobsTensors) -> LogprobsTensors:
    """Puts some rows of one result into another of the same batch; the narrower one is filled with -inf.

    Args:
        specific: ``[batch, 1 + ids]``, valid in `rows`.
        rows: Its rows that are taken.
        top: ``[batch, 1 + k]``, the other rows.
    """
    import torch
    from vllm.v1.outputs import LogprobsTensors

    width = max(specific.logprobs.shape[1], top.logprobs.shape[1])

    def wide(tensor: torch.Tensor, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=value)

    taken = torch.zeros(top.logprobs.shape[0], 1, dtype=torch.bool)
    taken[list(rows)] = True
    taken = taken.to(top.logprobs.device, non_blocking=True)
    return LogprobsTensors(
        torch.where(taken, wide(specific.logprob_token_ids, 0), wide(top.logprob_token_ids, 0)),
        torch.where(taken, wide(specific.logprobs, float("-inf")), wide(top.logprobs, float("-inf"))),
        top.selected_token_ranks,
    )
