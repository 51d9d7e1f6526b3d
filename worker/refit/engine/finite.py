"""Which of a refit's weights are not finite, one pass over each tensor where it lies; and what they leave in the KV cache."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from worker.refit.engine.parameters import Parameters
from worker.refit.weights.copy_plan import Tensors


class NotFinite(dict[str, int]):
    """How many values of a refit's tensors are NaN or infinite, by the name of each tensor that has any.

    Attributes:
        beyond: How many finite values the engine's dtype cannot hold, in the same way. A parameter of a wider dtype, or a
            quantised one, keeps them: `after_casts` finds out.

    Args:
        dtype: The engine's; None if what is looked at has it already.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.beyond: dict[str, int] = {}
        self._dtype = dtype
        self._limit = math.inf if dtype is None else torch.finfo(dtype).max

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Looks at a tensor; a recording that is active does not see that."""
        with _disable_current_modes():
            self.look([(name, tensor)])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def look(self, tensors: Tensors) -> None:
        """Looks at tensors that lie side by side in time: on a GPU they are read by few kernels, and waited for once."""
        alike = defaultdict(list)
        for name, tensor in tensors:
            if tensor.is_floating_point() and tensor.numel():
                # No reduction takes numbers of 8 bits.
                alike[tensor.device, tensor.dtype].append((name, tensor.bfloat16() if tensor.itemsize == 1 else tensor))
        for group in alike.values():
            largest = _largest([tensor for _, tensor in group])
            for (name, tensor), size in zip(group, largest, strict=True):
                if not math.isfinite(size):
                    self[name] = self.get(name, 0) + int((~tensor.isfinite()).sum())
                elif size > self._limit and (lost := int((~tensor.to(self._dtype).isfinite()).sum())):
                    self.beyond[name] = lost

    def look_at_model(self, parameters: Parameters) -> None:
        """Looks at what a model computes with; numbers of 8 bits have a scale, which is looked at."""
        self.look((name, tensor) for name, tensor in parameters.tensors() if tensor.itemsize > 1)
        self.look(parameters.answers(scale=0.0))

    def after_casts(self, model: nn.Module) -> None:
        """Counts what is `beyond` as not finite, if the model that took it is not."""
        if self.beyond:
            held = NotFinite()
            held.look_at_model(Parameters(model))
            if held:
                self.update(self.beyond)


def _largest(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Returns the largest absolute value of each tensor, which cannot overflow; NaN if there is one."""
    if tensors[0].device.type == "cpu":
        # A norm of bfloat16 takes 25 times as long there.
        return [max(-low, high) for low, high in ((float(end) for end in tensor.aminmax()) for tensor in tensors)]
    found: list[float] = torch.stack(torch._foreach_norm(tensors, math.inf)).tolist()
    return found


@torch.inference_mode()  # type: ignore[untyped-decorator]
def mend_cache(worker: Any, *, is_noted: bool) -> None:
    """Puts zeros in the place of what is not finite in the KV cache; blocks are used again as they are.

    Attention multiplies values behind a sequence's end, in its last block, by a weight of zero, and zero times NaN is NaN: seen
    in the kernels of vLLM's CPU platform.

    Args:
        worker: The worker.
        is_noted: Weights that are not finite were in force. Finite ones may have overflown float16 on the way: then the last
            layer has NaN wherever another has, and is looked at on CPUs.
    """
    cache = tree_leaves(worker.model_runner.kv_caches)
    if not is_noted:
        if {(part.dtype, part.device.type) for part in cache} != {(torch.float16, "cpu")}:
            return
        if math.isfinite(_largest(cache[-1:])[0]):
            return
    for part in cache:
        if part.is_floating_point() and part.itemsize > 1:
            part.nan_to_num_(0.0, 0.0, 0.0)
        else:
            part.zero_()
