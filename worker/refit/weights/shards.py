"""What a trainer's rank holds of a model that is sharded (``DTensor``), in a checkpoint's names, without gathering it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from worker.errors import RefitError
from worker.refit.weights.box import Box, Part, Region, narrowed
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope, checkpoint_layout, gathered, is_sharded, local, own_tensors


class _View(NamedTuple):
    """A tensor of the checkpoint as a view of one of the model's: that one's name, which part of it, in which dimensions."""

    parent: str
    region: Region
    box: Box
    axes: tuple[int | None, ...]

    def shown(self, held: Box, local: torch.Tensor) -> tuple[Box, torch.Tensor] | None:
        """Returns what a rank has of the view, in the view's dimensions: which part, and the part; None if it has nothing.

        Args:
            held: What it has of the model's tensor.
            local: That part.
        """
        if (part := self.box.common(held)) is None:
            return None
        local = narrowed(local, part, held)
        start = tuple(0 if axis is None else part.start[axis] - self.box.start[axis] for axis in self.axes)
        size = tuple(1 if axis is None else part.size[axis] for axis in self.axes)
        return Box(start, size), local.view(size)


class Shards:
    """The tensors of one refit as one rank of a sharded model has them; it keeps none of them alive.

    Attributes:
        manifest: Describes all of them, in full shapes.
    """

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        scope: RefitScope | str,
        views: Mapping[str, _View],
        boxes: Mapping[str, Box],
        manifest: Manifest,
    ) -> None:
        """Takes what `of` found."""
        self.manifest = manifest
        self._scope = scope
        self._views = views
        self._boxes = boxes
        self._meshes = {
            name: (str(tensor.device_mesh.device_type), int(tensor.device_mesh.size()))
            for name, tensor in state.items()
            if is_sharded(tensor)
        }

    @classmethod
    def of(cls, model: torch.nn.Module, scope: RefitScope | str) -> Shards | None:
        """Describes a model; None if it is not sharded, or its checkpoints hold what must be computed from whole tensors.

        Args:
            model: The trainer's model.
            scope: What to send.

        Raises:
            ValueError: The scope is unknown.
        """
        state = own_tensors(model, scope)
        if not any(map(is_sharded, state.values())):
            return None
        ghosts = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}
        names = {_memory(ghost): name for name, ghost in ghosts.items()}
        views, described = {}, checkpoint_layout(model, dict(ghosts))
        for name, ghost in described.items():
            parent, region = names.get(_memory(ghost)), Region.lying(ghost)
            shown = region.shown(state[parent].shape) if parent is not None else None
            if parent is None or shown is None:
                return None
            views[name] = _View(parent, region, *shown)
        boxes = {name: box for name, tensor in state.items() if (box := _box(tensor)) is not None}
        return cls(state, scope, views, boxes, Manifest.of(described.items())) if len(boxes) == len(state) else None

    def is_sharded(self, name: str) -> bool:
        """Returns whether a tensor is a part of a ``DTensor``."""
        return self._views[name].parent in self._meshes

    def has_all_ranks(self, device: torch.device) -> bool:
        """Returns whether each rank of the default process group has a part, and the groups work on a kind of device.

        All ranks of the model find the same.

        Args:
            device: One of that kind.
        """
        kinds, sizes = zip(*self._meshes.values(), strict=True)
        return set(kinds) == {device.type} and dist.get_world_size() in sizes

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def held(self, model: torch.nn.Module) -> Iterator[Part]:
        """Yields what this rank has of each tensor.

        Args:
            model: The model that was described.

        Raises:
            RefitError: It has other tensors now.
        """
        own = {name: local(tensor) for name, tensor in self._tensors(model).items()}
        for spec in self.manifest.tensors:
            view = self._views[spec.name]
            if (shown := view.shown(self._boxes[view.parent], own[view.parent])) is not None:
                yield Part(spec, *shown)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def gathered(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and whole, contiguous tensors; all ranks have to iterate together. Arguments and errors as above.

        Each of the model's tensors is gathered when its first part's turn comes, and kept until its last one's is over.
        """
        left = Counter(view.parent for view in self._views.values())
        wholes: dict[str, torch.Tensor] = {}
        own = self._tensors(model)
        for name, (parent, region, *_) in self._views.items():
            if parent not in wholes:
                ((_, wholes[parent]),) = gathered({parent: own[parent]})
            left[parent] -= 1
            yield name, region.of(wholes[parent] if left[parent] else wholes.pop(parent)).contiguous()

    def _tensors(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        found = own_tensors(model, self._scope)
        if found.keys() != self._boxes.keys():
            raise RefitError("refit: the model has changed since it was described; make a Source for every refit")
        return found


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
