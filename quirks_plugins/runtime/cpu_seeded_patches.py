"""The function that ``cpu-seeded-chunked-prefill`` puts into vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner


def sample_tokens(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
    """Sample, without the seeded generators of requests whose token of this step is thrown away.

    Rows whose prompt is not complete yet (``discard_request_mask`` ``[requests]``) are sampled, and the token is discarded. On
    GPUs vLLM then winds the row's generator back; here the row draws from the process's own.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    batch = self.input_batch
    discarded = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    hidden = {row: batch.generators.pop(row) for row in discarded if row in batch.generators}
    try:
        return super(CPUModelRunner, self).sample_tokens(*args, **kwargs)
    finally:
        batch.generators.update(hidden)
