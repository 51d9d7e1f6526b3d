"""What tests of a refit's transports send, and how they look at what came of it."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from patience import HUNG_S

from worker.errors import TransferError

#: Seconds that nobody may have to wait for the end of: whoever does takes the wrong way to an error.
FOREVER_S = 3600.0


def many(count: int = 12, start: float = 0.0) -> dict[str, torch.Tensor]:
    """Tensors of 1 KiB each, all different."""
    return {f"t{index}": torch.full((256,), start + index) for index in range(count)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit by bit: a NaN is equal to itself here."""
    return list(one) == list(other) and all(
        (one[name].dtype, one[name].shape) == (other[name].dtype, other[name].shape)
        and torch.equal(one[name].reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8))
        for name in one
    )


def error_of(future: Future) -> str:
    """What went wrong over there."""
    with pytest.raises(TransferError) as caught:
        future.result(HUNG_S)
    return str(caught.value)
