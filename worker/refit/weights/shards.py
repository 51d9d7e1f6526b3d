"""What a trainer's rank holds of a model that is sharded (``DTensor``), in a checkpoint's names, without gathering it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from worker.refit.weights.box import Box, View
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope, checkpoint_layout, own_layout


class _Part(NamedTuple):
    """A tensor of the checkpoint as a view of one of the model's: that one's name, and size, stride and offset."""

    parent: str
    view: View
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Shards:
    """The tensors of one refit as one rank of a sharded model has them.

    Attributes:
        manifest: Describes all of them, in full shapes.
        held: Which part of each this rank holds, and the part itself; the names of those of which it holds nothing are missing.
    """

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        boxes: Mapping[str, Box],
        parts: Mapping[str, _Part],
        manifest: Manifest,
    ) -> None:
        """Takes what `of` found."""
        self.manifest = manifest
        self._state = state
        self._parts = parts
        own = {name: tensor.to_local().detach() if is_sharded(tensor) else tensor for name, tensor in state.items()}
        found = ((name, part.view.shown(boxes[part.parent], own[part.parent])) for name, part in parts.items())
        self.held = {name: pair for name, pair in found if pair is not None}

    @classmethod
    def of(cls, model: torch.nn.Module, scope: RefitScope | str) -> Shards | None:
        """Describes a model; None if it is not sharded, or its checkpoints hold what must be computed from whole tensors.

        Args:
            model: The trainer's model.
            scope: What to send.

        Raises:
            ValueError: The scope is unknown.
        """
        state = own_layout(model, scope)
        if not any(map(is_sharded, state.values())):
            return None
        ghosts = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}
        names = {_memory(ghost): name for name, ghost in ghosts.items()}
        parts, described = {}, checkpoint_layout(model, dict(ghosts))
        for name, ghost in described.items():
            parent = names.get(_memory(ghost))
            layout = tuple(ghost.shape), ghost.stride(), ghost.storage_offset()
            view = View.find(state[parent].shape, *layout) if parent is not None else None
            if parent is None or view is None:
                return None
            parts[name] = _Part(parent, view, *layout)
        boxes = {name: box for name, tensor in state.items() if (box := _box(tensor)) is not None}
        return cls(state, boxes, parts, Manifest.of(described.items())) if len(boxes) == len(state) else None

    def is_sharded(self, name: str) -> bool:
        """Returns whether a tensor is a part of a ``DTensor``."""
        return is_sharded(self._state[self._parts[name].parent])

    def has_all_ranks(self, device: torch.device) -> bool:
        """Returns whether each rank of the default process group has a part, and the groups work on a kind of device.

        All ranks of the model find the same.

        Args:
            device: One of that kind.
        """
        meshes = [tensor.device_mesh for tensor in self._state.values() if is_sharded(tensor)]
        size = dist.get_world_size()
        return all(mesh.device_type == device.type for mesh in meshes) and any(mesh.size() == size for mesh in meshes)

    def gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and whole, contiguous tensors; all ranks have to iterate together.

        Each of the model's tensors is gathered when its first part's turn comes, and kept until its last one's is over.
        """
        left = Counter(part.parent for part in self._parts.values())
        wholes: dict[str, torch.Tensor] = {}
        for name, (parent, _, size, stride, offset) in self._parts.items():
            if parent not in wholes:
                tensor = self._state[parent]
                wholes[parent] = (tensor.full_tensor() if is_sharded(tensor) else tensor).contiguous()
            left[parent] -= 1
            whole = wholes[parent] if left[parent] else wholes.pop(parent)
            yield name, whole.as_strided(size, stride, whole.storage_offset() + offset).contiguous()


def is_sharded(tensor: Any) -> bool:
    """Returns whether a tensor is a ``DTensor``."""
    return hasattr(tensor, "full_tensor")


def _box(tensor: Any) -> Box | None:
    """Returns which part of a tensor this rank has; None if the ranks' values are no such parts."""
    if not is_sharded(tensor):
        return Box.whole(tensor.shape)
    if any(placement.is_partial() for placement in tensor.placements) or _is_scattered(tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    box = Box(tuple(start), tuple(size))
    return box if box.size == tuple(tensor.to_local().shape) else None


def _is_scattered(tensor: Any) -> bool:
    """Returns whether a rank may have rows that do not follow each other.

    FSDP2 beside tensor parallelism deals out strided shards, of which a later dimension of the mesh takes one part each.
    """
    placements, sizes = tensor.placements, tensor.device_mesh.shape
    for number, placement in enumerate(placements):
        dimension = getattr(placement, "dim", None)
        later = zip(placements[number + 1 :], sizes[number + 1 :], strict=True)
        parts = math.prod(size for other, size in later if getattr(other, "dim", None) == dimension)
        if getattr(placement, "split_factor", parts) != parts:
            return True
    return False


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
