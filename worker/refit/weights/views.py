"""Conversions of a model's layout that take no memory: parts of tensors stay parts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_T = TypeVar("_T")


def without_copies(convert: Callable[[], _T]) -> _T:
    """Runs a conversion that splits and renames tensors; the parts that it would copy stay views, contiguous or not.

    transformers makes the parts of a fused tensor contiguous one and all, which for a MoE model takes as much memory as its
    experts. A conversion that changes values in place is run as it is.
    """
    try:
        with _Views():
            return convert()
    except _MutationError:
        return convert()


class _MutationError(Exception):
    """A conversion writes to a tensor, which may be the model's own."""


class _Views(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.clone.default:
            return args[0]
        if func._schema.is_mutable:
            raise _MutationError
        return func(*args, **(kwargs or {}))
