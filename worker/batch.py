"""The form of a batch: right-padded prompts in, one unpadded row per sample out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from worker.errors import BatchError

#: Tensors and lists by name; row i of each belongs to sample i.
Batch = dict[str, Any]

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def prompts(data: Mapping[str, Any]) -> list[list[int]]:
    """Cuts the padding off a batch of prompts.

    Args:
        data: ``input_ids`` [B, S], integer token ids, padded on the right; ``input_lengths`` [B], integer, the number of
            valid tokens of each row.

    Returns:
        B lists of token ids.

    Raises:
        BatchError: The batch does not have that form; the message lists every problem.
    """
    _refuse(f"{name!r} is missing" for name in ("input_ids", "input_lengths") if name not in data)
    ids, lengths = data["input_ids"], data["input_lengths"]
    _refuse(
        f"{name!r} must be an integer tensor with {dimensions} dimensions, not {_form(value)}"
        for name, value, dimensions in (("input_ids", ids, 2), ("input_lengths", lengths, 1))
        if not isinstance(value, torch.Tensor) or value.dim() != dimensions or value.dtype not in _INTEGERS
    )
    if len(ids) != len(lengths):
        raise BatchError(f"batch: {len(ids)} rows of input_ids but {len(lengths)} input_lengths")
    width = ids.shape[1]
    _refuse(
        f"row {row}: input length {length} is outside 1..{width}"
        for row, length in enumerate(lengths.tolist())
        if not 1 <= length <= width
    )
    rows = [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]
    # After the padding is cut off: its values do not matter, and some trainers fill it with -100.
    _refuse(f"row {row}: negative token ids" for row, valid in enumerate(rows) if min(valid) < 0)
    return rows


def padded(rows: Sequence[Sequence[int]]) -> Batch:
    """Puts prompts into the form that `prompts` reads.

    Args:
        rows: B lists of token ids.

    Returns:
        ``input_ids`` [B, S] int64, padded on the right with 0; ``input_lengths`` [B] int64.

    Raises:
        BatchError: There is no prompt.
    """
    if not rows:
        raise BatchError("batch: there are no prompts")
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True)
    return {"input_ids": ids, "input_lengths": torch.tensor([len(row) for row in rows])}


def check_lengths(rows: Sequence[Sequence[int]], longest: int, *, room: int = 0) -> None:
    """Makes sure that prompts have tokens and fit the engine's context.

    Args:
        rows: B lists of token ids.
        longest: ``engine.max_model_len``.
        room: Tokens that must fit after each.

    Raises:
        BatchError: Some do not; the message names their rows.
    """
    if wrong := [index for index, row in enumerate(rows) if not 0 < len(row) <= longest - room]:
        spare = f", with room for {room} more" if room else ""
        raise BatchError(f"batch: rows {wrong} are empty, or longer than engine.max_model_len = {longest}{spare}")


def texts(data: Mapping[str, Any]) -> list[str]:
    """Returns the text prompts of a batch.

    Args:
        data: ``prompts``: B texts.

    Raises:
        BatchError: They do not have that form.
    """
    given = data.get("prompts")
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(text, str) for text in given):
        raise BatchError("batch: 'prompts' must be a list of texts")
    return list(given)


def stop_strings(data: Mapping[str, Any], rows: int, configured: Sequence[str] = ()) -> tuple[str, ...]:
    """Merges the stop strings of a batch: every sample stops at any of them.

    Args:
        data: ``stop_strings``, if it is there: for each row None or a list of texts.
        rows: B.
        configured: Those of the configuration.

    Returns:
        All of them, each once, sorted.

    Raises:
        BatchError: They do not have that form.
    """
    given = data.get("stop_strings")
    if given is None:
        return tuple(sorted(set(configured)))
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or len(given) != rows or not all(_is_texts(item) for item in given):
        raise BatchError(f"batch: 'stop_strings' must hold None or a list of texts that are not empty for each of {rows} rows")
    return tuple(sorted({*configured, *(text for item in given for text in item or ())}))


def seeds(data: Mapping[str, Any], rows: int) -> dict[int, int]:
    """Reads the seeds of a batch; a sample with its own seed does not depend on other requests.

    Args:
        data: ``seeds``, if it is there: [B] integers, tensor or list.
        rows: B.

    Returns:
        Seeds by row; empty if none are given.

    Raises:
        BatchError: They do not have that form.
    """
    given = data.get("seeds")
    if given is None:
        return {}
    listed = given.tolist() if isinstance(given, torch.Tensor) else given
    if not isinstance(listed, Sequence) or len(listed) != rows or not all(type(seed) is int for seed in listed):
        raise BatchError(f"batch: 'seeds' must hold an integer for each of {rows} rows")
    return dict(enumerate(listed))


def sample(
    prompt: Sequence[int],
    generated: Sequence[int],
    logprobs: Sequence[float],
    *,
    truncated: bool,
    weight_versions: Sequence[tuple[str, int, int]] = (),
    cached: int = 0,
) -> Batch:
    """Puts one finished sample into the form that trainers take.

    Args:
        prompt: P token ids.
        generated: G token ids.
        logprobs: G logprobs, one per generated token.
        truncated: The generation reached its maximum length.
        weight_versions: Which weights generated which of the G tokens: ``(version, start, end)``.
        cached: How many of the P tokens came from the engine's prefix cache.

    Returns:
        ``output_ids`` [1, P+G] int64; ``logprobs`` [1, P+G] float32, 0.0 on the prompt; ``generation_lengths`` [1] int64;
        ``unpadded_sequence_lengths`` [1] int64, P+G; ``truncated`` [1] bool; ``num_cached_tokens`` [1] int64;
        ``weight_versions``, a list of one list of spans.
    """
    return {
        "output_ids": torch.tensor([[*prompt, *generated]], dtype=torch.int64),
        "logprobs": torch.tensor([[*([0.0] * len(prompt)), *logprobs]], dtype=torch.float32),
        "generation_lengths": torch.tensor([len(generated)], dtype=torch.int64),
        "unpadded_sequence_lengths": torch.tensor([len(prompt) + len(generated)], dtype=torch.int64),
        "truncated": torch.tensor([truncated], dtype=torch.bool),
        "num_cached_tokens": torch.tensor([cached], dtype=torch.int64),
        "weight_versions": [list(weight_versions)],
    }


def routed_experts(found: Any, length: int, experts: int) -> Batch:
    """Aligns the experts that an engine chose with the tokens of a sample, for router replay.

    Args:
        found: [N, L, K], for the first N tokens the K experts in each of L MoE layers.
        length: Tokens of the sample; the engine need not have computed the last one.
        experts: How many experts a layer has.

    Returns:
        ``routed_experts`` [1, length, L, K] in the smallest signed integers that hold them: -1 for tokens without, and 0 to K-1
        for the last token; ``r3_routed_experts_missing_routes``, ``…_expected_routes`` and ``…_actual_routes`` [1] int64.

    Raises:
        BatchError: There are more than tokens.
    """
    routed = torch.from_numpy(found.astype("int32"))
    actual, expected = len(routed), length - 1
    if actual > length:
        raise BatchError(f"the engine returned the experts of {actual} tokens for a sample of {length}")
    kind = next(kind for kind in (torch.int8, torch.int16, torch.int32) if experts - 1 <= torch.iinfo(kind).max)
    aligned = torch.arange(routed.shape[2], dtype=kind).repeat(length, routed.shape[1], 1)
    aligned[:expected] = -1
    aligned[: min(actual, expected)] = routed[:expected]
    counts = {"missing": max(expected - actual, 0), "expected": expected, "actual": actual}
    named = {f"r3_routed_experts_{name}_routes": torch.tensor([count]) for name, count in counts.items()}
    return {"routed_experts": aligned.unsqueeze(0), **named}


def scores(logprobs: Sequence[float]) -> Batch:
    """Puts the logprobs of given tokens into the form of a sample: ``logprobs`` [1, S] float32."""
    return {"logprobs": torch.tensor([list(logprobs)], dtype=torch.float32)}


def collate(samples: Sequence[tuple[int, Batch]], pad_token_id: int) -> Batch:
    """Puts finished samples back into one batch, in the order of their indices.

    Args:
        samples: ``(original_index, sample)`` pairs in any order, as ``generate_async`` yields them.
        pad_token_id: Fills ``output_ids`` on the right; ``logprobs`` are filled with 0.0, ``routed_experts`` with -1.

    Returns:
        The fields of `sample` with B rows, padded to the longest.
    """
    rows = [row for _, row in sorted(samples, key=lambda item: item[0])]
    if not rows:
        raise BatchError("batch: no samples to put together")
    _refuse(f"only some samples have {name!r}" for name in sorted(set().union(*rows)) if not all(name in row for row in rows))
    fills = {"output_ids": pad_token_id, "logprobs": 0.0, "routed_experts": -1}
    joined: Batch = {}
    for name, first in rows[0].items():
        if isinstance(first, list):
            joined[name] = [item for row in rows for item in row[name]]
        elif first.dim() == 1:
            joined[name] = torch.cat([row[name] for row in rows])
        else:
            unpadded = [row[name][0] for row in rows]
            joined[name] = torch.nn.utils.rnn.pad_sequence(unpadded, batch_first=True, padding_value=fills[name])
    return joined


def _refuse(problems: Iterable[str]) -> None:
    if found := "; ".join(problems):
        raise BatchError(f"batch: {found}")


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _is_texts(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return value is None or (listed and all(isinstance(text, str) and text for text in value))
