"""Compares an engine that loaded the checkpoint with transformers: where they differ, a refit is not the cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from quirks_core.base.errors import words
from worker.batch import padded
from worker.engine import vllm_adapter
from worker.lab.audit import layers
from worker.lab.audit.logprobs import Logprobs
from worker.lab.audit.records import AuditError, Disagreement, Logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from worker.async_worker import VllmAsyncGenerationWorker

#: Largest difference to transformers in float32 of a correct engine, in nats, by the engine's dtype. Seen in float32: 1e-5 with
#: most models, 1e-2 with an activation function that vLLM computes in bfloat16.
_TOLERANCE = {"float32": 0.03}
_COARSE = 1.0
#: Largest difference between the outputs of a layer, relative to the largest output.
_OF_LAYERS = {"float32": 3e-3}
_OF_COARSE_LAYERS = 0.1


async def disagreement_of(
    worker: VllmAsyncGenerationWorker, trainer: PreTrainedModel, logprobs: Logprobs
) -> Disagreement | None:
    """Compares an engine that loaded the checkpoint with transformers.

    Args:
        worker: The worker of that engine, on which `logprobs` were taken.
        trainer: The same checkpoint, in float32.
        logprobs: The tokens to compare, with the engine's logprobs.

    Returns:
        How they differ, and from which layer on; None if they agree.

    Raises:
        AuditError: transformers cannot compute the model.
    """
    dtype = vllm_adapter.model_dtype(worker.engine.llm)
    try:
        expected = [value for row in logprobs.rows for value in _scored(trainer, row)]
    except Exception as error:
        raise AuditError(f"transformers cannot compute the model: {words(error)}; --no-logits skips this comparison") from error
    found = Logits.of(logprobs.expected, expected, _TOLERANCE.get(dtype, _COARSE))
    if found.close:
        return None
    row = logprobs.rows[0]
    got = await _recorded(worker, row)
    theirs = layers.computed(trainer, row)
    layer = layers.first_that_differs(got, theirs, _OF_LAYERS.get(dtype, _OF_COARSE_LAYERS))
    return Disagreement(logits=found, layer=layer, compared=len(got.keys() & theirs.keys()))


async def _recorded(worker: VllmAsyncGenerationWorker, row: Sequence[int]) -> layers.Outputs:
    """Returns the outputs of the engine's layers for a row of tokens."""
    await worker.engine.call(layers.start_recording, len(row))
    try:
        async for _ in worker.score_async(padded([row])):
            pass
    finally:
        answers = await worker.engine.call(layers.stop_recording)
    return {name: rows for answer in reversed(answers) for name, rows in answer.items()}


def _scored(trainer: PreTrainedModel, row: Sequence[int]) -> list[float]:
    """Returns the logprob of each token of a row except the first."""
    ids = torch.tensor([list(row)])
    with torch.inference_mode():
        logprobs = trainer(ids, use_cache=False).logits[0, :-1].double().log_softmax(-1)
    found: list[float] = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return found
