"""The functions that the quirk ``cpu-moe-expert-parallel`` puts into vLLM.

They prefer plain code to bandwidth (padded gather, full sum): fit for tests and small models. Only engine processes import this
module, so torch is imported at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def all_gatherv(
    self: CpuCommunicator,
    input_: torch.Tensor | list[torch.Tensor],
    dim: int = 0,
    sizes: list[int] | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Concatenate the rows of all ranks, ``[sizes[rank], ...]`` of any dtype, into ``[sum(sizes), ...]``; a list gives a list.

    The list of `sizes` is the same on every rank, with zeros allowed; None is as many rows on all. `dim` is 0, as on CUDA.
    """
    if dim != 0:
        raise NotImplementedError(f"all_gatherv on CPU joins rows (dim 0) only, not dim {dim}")
    if isinstance(input_, torch.Tensor):
        return _gather_rows(self, input_, sizes)
    return [_gather_rows(self, tensor, sizes) for tensor in input_]


def reduce_scatterv(self: CpuCommunicator, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None) -> torch.Tensor:
    """Sum a tensor of the same shape and floating dtype over all ranks, and return this rank's share of `dim`, contiguous.

    It is ``sizes[rank]`` long in `dim`, and the input ``sum(sizes)``; None is equal shares. The input is left unchanged.
    """
    length = input_.shape[dim]
    if sizes is None:
        sizes = [length // self.world_size] * self.world_size
    if len(sizes) != self.world_size or sum(sizes) != length:
        raise ValueError(f"cannot cut {length} entries into shares of {sizes} for {self.world_size} ranks")
    # Gloo has no reduce-scatter with unequal shares. It sums in place, and the caller may still need its input.
    total = input_.clone(memory_format=torch.contiguous_format)
    if total.numel():
        dist.all_reduce(total, group=self.device_group)
    rank = self.rank_in_group
    return total.narrow(dim, sum(sizes[:rank]), sizes[rank]).contiguous()


def wrap_experts_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``CPUUnquantizedExperts.apply`` honour ``expert_map``; a call without a map passes untouched.

    vLLM's modular kernel, which alone calls the CPU experts, gives every argument by name. Those that matter here:
    ``topk_weights`` ``[tokens, topk]`` float32; ``topk_ids`` ``[tokens, topk]`` int32, counted over the experts of all
    ranks; ``expert_map`` ``[global experts]`` int32, the position among this rank's experts or -1 (``None``: all are
    here); ``output`` ``[tokens, hidden]``, written in place with this rank's part of the sum over experts.
    """

    @wraps(original)
    def apply(self: Any, *, expert_map: torch.Tensor | None, **kwargs: Any) -> Any:
        if expert_map is None:
            return original(self, expert_map=None, **kwargs)
        topk_ids = kwargs["topk_ids"]
        local_ids = expert_map[topk_ids.long()]
        is_foreign = local_ids < 0
        # The kernel cannot skip an entry: a foreign expert becomes a valid one (0) without weight.
        kwargs["topk_ids"] = local_ids.clamp(min=0).to(topk_ids.dtype)
        kwargs["topk_weights"] = kwargs["topk_weights"].masked_fill(is_foreign, 0)
        result = original(self, expert_map=expert_map, **kwargs)
        if kwargs["apply_router_weight_on_input"]:
            # The tokens were weighted beforehand (topk is 1) and the kernel ignored the weights, zeros included.
            kwargs["output"].masked_fill_(is_foreign, 0)
        return result

    return apply


def _gather_rows(group: CpuCommunicator, tensor: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
    rows = tensor.shape[0]
    if sizes is None:
        sizes = [rows] * group.world_size
    if len(sizes) != group.world_size or sizes[group.rank_in_group] != rows:
        # Ranks that disagree would hang or mix rows, so stop before the collective.
        raise ValueError(f"rank {group.rank_in_group} of {group.world_size} has {rows} rows, but sizes is {sizes}")
    # Gloo gathers equal lengths only: everyone sends as many rows as the longest rank, and the padding is cut off.
    longest = max(sizes)
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[:rows] = tensor
    gathered = [torch.empty_like(padded) for _ in sizes]
    if padded.numel():
        dist.all_gather(gathered, padded, group=group.device_group)
    return torch.cat([chunk.narrow(0, 0, size) for chunk, size in zip(gathered, sizes, strict=True)])
