"""Which of a refit's weights are not finite: one pass over each tensor where it lies, without a mask of its size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from worker.refit.engine.copy_plan import Tensors


class NotFinite(dict[str, int]):
    """How many values of a refit's tensors are NaN or infinite, by the name of each tensor that has any."""

    def watch(self, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Passes tensors on and looks at each; a recording that is active does not see that."""
        for name, tensor in tensors:
            with _disable_current_modes():
                self.look([(name, tensor)])
            yield name, tensor

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


def _largest(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Returns the largest absolute value of each tensor, which cannot overflow; NaN if there is one."""
    if tensors[0].device.type == "cpu":
        # A norm of bfloat16 takes 25 times as long there.
        return [max(-low, high) for low, high in ((float(end) for end in tensor.aminmax()) for tensor in tensors)]
    found: list[float] = torch.stack(torch._foreach_norm(tensors, math.inf)).tolist()
    return found
