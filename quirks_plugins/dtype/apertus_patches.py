"""The function that ``apertus-xielu-bfloat16`` puts into vLLM; only engine processes import this module."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_init"]


def wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    """Make xIELU's parameters and constants in torch's default dtype, which is the model's while vLLM makes the model."""

    @wraps(original)
    def init(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        import torch

        if len(args) <= _PLACE_OF_DTYPE:
            kwargs.setdefault("dtype", torch.get_default_dtype())
        original(self, *args, **kwargs)

    return init


#: The position of dtype among the arguments after ``self``: alpha_p_init, alpha_n_init, beta, eps, dtype.
_PLACE_OF_DTYPE = 4
