"""Logprobs of given tokens by a transformers model: whole sequences, no cache, softmax in float32."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from worker.lab.parity.records import Sample, Scoring

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Most tokens of a batch, padding included; a longer row has a batch of its own.
MOST_TOKENS = 8192
#: Most logits that one forward pass may return: 1 GiB in bfloat16.
_MOST_LOGITS = 2**29
#: Positions whose logits are float32 at a time.
_CHUNK = 256


def logprobs(
    model: PreTrainedModel, samples: Sequence[Sample], *, float32_head: bool = False, autocast: str | None = None
) -> list[tuple[float, ...]]:
    """Scores the generated tokens of samples with the weights that the model holds.

    Rows of about the same length share a batch. They are padded on the right, where no causal layer, be it attention, a
    state-space layer or a router, lets padding reach a token that counts.

    Args:
        model: The model, in evaluation mode.
        samples: What to score, each with a prompt; temperature, top-p and top-k are those of each sample.
        float32_head: Compute the product of the language-model head in float32, from the model's hidden states and weights.
        autocast: The dtype that torch's autocast computes in, as in mixed-precision training: ``bfloat16`` or ``float16``.

    Returns:
        G logprobs per sample, in nats.
    """
    found: list[tuple[float, ...]] = [()] * len(samples)
    vocab_size = model.config.get_text_config().vocab_size
    with torch.no_grad(), autocasting(model, autocast), _head(model, float32=float32_head):
        for batch in _batches(samples, min(MOST_TOKENS, _MOST_LOGITS // vocab_size)):
            scored = _batch_logprobs(model, [samples[index] for index in batch])
            for index, values in zip(batch, scored, strict=True):
                found[index] = values
    return found


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """Returns the logprobs ([G] float32) of tokens ([G] int64) as vLLM's ``processed_logprobs`` define them.

    Args:
        logits: [G, V] logits of any floating dtype.
        tokens: The tokens.
        scoring: Temperature, top-p and top-k.
    """
    parts = []
    for part, ids in zip(logits.split(_CHUNK), tokens.split(_CHUNK), strict=True):
        processed = truncated(part.float() / scoring.temperature, ids, scoring.top_k, scoring.top_p)
        parts.append(processed.log_softmax(-1).gather(1, ids[:, None])[:, 0])
    return torch.cat(parts)


def truncated(logits: torch.Tensor, tokens: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Returns logits with -inf for the tokens that top-k and top-p exclude, by the rules of vLLM's sampler.

    The given tokens are always kept: the engine sampled them, and at the boundary rounding may exclude them here.

    Args:
        logits: [G, V] float32, already divided by the temperature.
        tokens: [G] int64 token ids.
        top_k: Number of most probable tokens to keep, and all that equal the last of them; -1 for all.
        top_p: Smallest share of probability to keep; 1 for all.
    """
    by_rank, by_mass = 0 < top_k < logits.shape[-1], top_p < 1
    if not by_rank and not by_mass:
        return logits
    # In vLLM's order: sorted, then cut by rank, then by mass, so that ties fall to the same side.
    ordered, order = logits.sort(dim=-1)
    if by_rank:
        ordered = ordered.masked_fill(ordered < ordered[:, -top_k, None], -torch.inf)
    if by_mass:
        outside = ordered.softmax(-1).cumsum(-1) <= 1 - torch.tensor(top_p, dtype=torch.float32, device=logits.device)
        outside[:, -1] = False
        ordered = ordered.masked_fill(outside, -torch.inf)
    kept = torch.empty_like(logits).scatter(1, order, ordered)
    return kept.scatter(1, tokens[:, None], logits.gather(1, tokens[:, None]))


def step(
    model: PreTrainedModel, samples: Sequence[Sample], *, float32_head: bool = False, autocast: str | None = None
) -> tuple[float, int]:
    """Returns what a training step over samples takes: seconds of a forward and a backward pass, the better of two, and memory.

    Returns:
        The seconds; the bytes of weights, gradients and what the forward pass keeps for the backward pass.
    """
    rows = [torch.tensor([*sample.prompt, *sample.tokens], device=model.device) for sample in samples]
    ids = pad_sequence(rows, batch_first=True)
    weights = {row.untyped_storage().data_ptr(): row.untyped_storage().nbytes() for row in model.parameters()}
    times, kept = [], dict[int, int]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for _ in range(2):
        kept.clear()
        begun = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with autocasting(model, autocast), _head(model, float32=float32_head):
                logits = model(input_ids=ids, use_cache=False).logits
            logits.float().log_softmax(-1).gather(-1, ids[..., None]).sum().backward()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        model.zero_grad()
    return min(times), sum({**kept, **weights}.values()) + sum(weights.values())


@contextmanager
def autocasting(model: PreTrainedModel, dtype: str | None) -> Iterator[None]:
    """Has torch compute products in another dtype than that of the weights within the context, unless it is None.

    A CPU without products in float16 gets them from float32, rounded: torch's own take minutes there.
    """
    has_products = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_fp16_supported()
    is_slow = model.device.type == "cpu" and not has_products
    products = _RoundedProducts() if is_slow and "float16" in (dtype, str(model.dtype)[6:]) else nullcontext()
    with products, nullcontext() if dtype is None else torch.autocast(model.device.type, getattr(torch, dtype)):
        yield


class _RoundedProducts(TorchDispatchMode):  # type: ignore[misc]
    """Computes products of float16 in float32, and rounds them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **(kwargs or {}))
        return func(*(one.float() if isinstance(one, torch.Tensor) else one for one in args), **(kwargs or {})).half()


_PRODUCTS = frozenset(getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm"))


def _batches(samples: Sequence[Sample], most_tokens: int) -> Iterator[list[int]]:
    """Yields numbers of samples, rows of about the same length together; samples without tokens are left out."""
    lengths = {number: len(sample.prompt) + len(sample.tokens) for number, sample in enumerate(samples) if sample.tokens}
    batch: list[int] = []
    for number in sorted(lengths, key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[number] > most_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _batch_logprobs(model: PreTrainedModel, samples: Sequence[Sample]) -> Iterator[tuple[float, ...]]:
    rows = [torch.tensor([*sample.prompt, *sample.tokens], device=model.device) for sample in samples]
    ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    options = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:  # the prompts' logits are not needed
        options["logits_to_keep"] = ids.shape[1] + 1 - min(len(sample.prompt) for sample in samples)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **options).logits
    left_out = ids.shape[1] - logits.shape[1]
    for sample, row in zip(samples, logits, strict=True):
        begin = len(sample.prompt) - 1 - left_out  # the logits of a position are those of the next token
        tokens = torch.tensor(sample.tokens, device=row.device)
        yield tuple(token_logprobs(row[begin : begin + len(tokens)], tokens, sample.scoring).tolist())


@contextmanager
def _head(model: PreTrainedModel, *, float32: bool) -> Iterator[None]:
    """Lets the language-model head compute in float32, whatever the model's own code does before and after it."""
    head = model.get_output_embeddings()
    if not float32 or (head.weight.dtype == torch.float32 and not torch.is_autocast_enabled(model.device.type)):
        yield
        return
    weight = head.weight.float()
    bias = None if getattr(head, "bias", None) is None else head.bias.float()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(model.device.type, enabled=False):  # it would round hidden states and weight again
            return linear(hidden.float(), weight, bias)

    head.forward = forward  # on the instance, where it hides that of the class
    try:
        yield
    finally:
        del head.forward
