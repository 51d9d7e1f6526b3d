"""The function that ``cpu-speculative-sampling`` puts in the place of vLLM's.

Only engine processes import this module; torch is imported when the function runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["expand_batch_to_tokens"]


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Give every token the value of its request.

    Args:
        x: ``[requests]``, a value of each request.
        cu_num_tokens: ``[requests]`` integer, the number of tokens up to and including each request.
        num_tokens: Number of all tokens.
        replace_from: A value that is replaced where it is found in `x`.
        replace_to: What replaces it.

    Returns:
        ``[num_tokens]``, of `x`'s dtype.
    """
    import torch

    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)
