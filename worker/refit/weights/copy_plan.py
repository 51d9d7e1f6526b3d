"""Which element of which of the trainer's tensors belongs where in the engine's model, where loading is nothing but copying.

A `CopyPlan` comes from a `worker.refit.engine.recording.Recording` of a refit that went through vLLM's layerwise reload.
With it the next refit is a batch of copies into the tensors that the engine runs on.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from quirks_core.base.text import listed
from worker.errors import RefitError
from worker.refit.weights.box import Box, Part, Region
from worker.refit.weights.expected import common, engine_name
from worker.refit.weights.manifest import Manifest, TensorSpec
from worker.refit.weights.prepared import PreparedLayers, Write
from worker.refit.weights.snapshot import Snapshot

#: Names and tensors.
Tensors: TypeAlias = Iterable[tuple[str, torch.Tensor]]
#: Takes note of a tensor that came.
See: TypeAlias = Callable[[str, torch.Tensor], None]
#: Takes note of tensors that came together.
SeeAll: TypeAlias = Callable[[Sequence[tuple[str, torch.Tensor]]], None]
_FILLS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default)
#: Bytes below which tensors are copied together. Larger ones reach the memory's full speed alone, and the device starts with
#: the first of them while the host is still at the others (on an H200, 16.4 GB in 399 tensors: 8.5 ms; all together 11.5 ms).
_SMALL = 1 << 20


class _Target(NamedTuple):
    """Where a part of a source goes.

    Attributes:
        taken: The part.
        written: The engine's memory for it.
        destination: Name of the tensor that this is a part of.
    """

    taken: Region
    written: torch.Tensor
    destination: str

    def part(self, spec: TensorSpec) -> Part | None:
        """Returns the part in the order of the tensor's dimensions; None if it goes in another one."""
        if (shown := self.taken.shown(spec.shape)) is None:
            return None
        box, _ = shown
        return Part(spec, box, self.written.view(box.size))


class CopyPlan:
    """What a recorded refit did, to be done again with other values.

    Attributes:
        manifest: What the trainer sent; the plan is for exactly this.
        copied: Names of the trainer's tensors that are copied.
        prepared: The layers that are processed once they are full of copies.
        reloaded: Names of those that must go through the layerwise reload: their layers compute something after loading.
        modules: Names of those layers.
        unloaded: Parameters of the model that get no value.
        destinations: The engine's tensors that are copied to, by name.
        plain: Names of the layers that loading does nothing to but copy, and write constants.
        uses: How often it was used.
        check_every: After how many uses the copies are compared with the model's loaders, beside the first; 0 for that alone.
        see: Gets what is copied and what the model's bytes do not show, if set.
        look: Gets each layer that is full, before it is processed: its own tensors, and those of the trainer's, if set.
    """

    check_every = 0
    see: SeeAll | None = None
    look: Callable[[Tensors, Tensors], None] | None = None

    def __init__(
        self,
        model: nn.Module,
        manifest: Manifest,
        writes: Sequence[Write],
        *,
        reloaded: Iterable[str],
        modules: Iterable[str],
        unloaded: Sequence[str] = (),
        prepared: PreparedLayers | None = None,
    ) -> None:
        """Finds the tensors of the model; they are written to as long as the model has them."""
        self.prepared = prepared or PreparedLayers({}, ())
        self.manifest = manifest
        self.reloaded = frozenset(reloaded)
        self.modules = frozenset(modules)
        self.unloaded = tuple(unloaded)
        self.uses = 0
        held = {name: tensor for name, tensor in slots(model) if tensor is not None}
        written_to = {one.destination for one in writes}
        tied = {id(held[name]) for name in written_to}
        self.plain = frozenset(name.rpartition(".")[0] for name, tensor in held.items() if id(tensor) in tied)
        self._snapshot = Snapshot(model, written_to)
        self._filled: set[str] = set()
        self._fills: list[tuple[torch.Tensor, float]] = []
        self._copies: dict[str, list[_Target]] = defaultdict(list)
        for source, taken, destination, region, value in writes:
            written = region.of(held[destination].detach())
            if taken is None:
                self._filled.add(destination)
                self._fills.append((written, value))
                continue
            self._copies[source].append(_Target(taken, written, destination))
        self.copied = frozenset(self._copies) | self.prepared.sources
        names = {target.destination for targets in self._copies.values() for target in targets}
        self.destinations = {name: held[name].detach() for name in names}

    def fits(self, manifest: Manifest, model: nn.Module) -> bool:
        """Returns whether the trainer sends what it sent, and the model has its tensors where they were."""
        return manifest == self.manifest and self.holds(model)

    def holds(self, model: nn.Module) -> bool:
        """Returns whether the model has the tensors that are written to where they were."""
        return self._snapshot.holds(model)

    def goes_to(self, name: str) -> set[str]:
        """Returns the names of the engine's tensors that one of the trainer's is copied to."""
        return {target.destination for target in self._copies.get(name, ())}

    @property
    def is_checked(self) -> bool:
        """Whether the copies of this use are compared with the model's loaders, which need whole tensors."""
        return self.uses == 0 or (self.check_every > 0 and self.uses % self.check_every == 0)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Begins a refit: writes the constants again, because the memory may have lost them (a deep sleep)."""
        for written, value in self._fills:
            written.fill_(value)

    @cached_property
    def wanted(self) -> list[Part]:
        """Which parts of the trainer's tensors go where, in the order of the model's memory.

        Tensors that are loaded, or not copied in their own order, are wanted whole: the ledger looks at those.
        """
        parts: list[tuple[int, Part]] = []
        wholes: list[Part] = []
        for spec in self.manifest.tensors:
            targets = self._copies.get(spec.name, [])
            found = [(one.written.data_ptr(), part) for one in targets if (part := one.part(spec)) is not None]
            if spec.name in self.reloaded or spec.name in self.hidden or len(found) < len(targets):
                wholes.append(Part(spec, Box.whole(spec.shape)))
            else:
                parts += found
        return [part for _, part in sorted(parts, key=itemgetter(0))] + wholes

    @cached_property
    def in_place(self) -> frozenset[str]:
        """Names of the trainer's tensors that are copied in their own order, to where their names belong: bytes show them."""
        found = set()
        for spec in self.manifest.tensors:
            strides, name = torch.empty(spec.shape, device="meta").stride(), engine_name(common(spec.name))
            targets = self._copies.get(spec.name, ())
            if targets and all(one.taken.stride == strides and name == common(one.destination) for one in targets):
                found.add(spec.name)
        return frozenset(found)

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Names of those that are copied in another way, and loaded by nobody."""
        return self.copied - self.in_place - self.reloaded

    @cached_property
    def alone(self) -> dict[str, str]:
        """The names of those of them that fill a tensor of the engine alone, and the name of that tensor."""
        numbers = {spec.name: math.prod(spec.shape) for spec in self.manifest.tensors}
        first = {name: self._copies[name][0] for name in self.in_place if len(self._copies[name]) == 1}
        times = Counter(target.destination for targets in self._copies.values() for target in targets)
        wholes = ((name, one.destination) for name, one in first.items() if one.written.numel() == numbers[name])
        return {name: place for name, place in wholes if times[place] == 1 and place not in self._filled}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def copy(self, tensors: Tensors) -> None:
        """Copies those of the trainer's tensors that are copied; returns when the copies are queued on the device.

        Args:
            tensors: Names and contiguous tensors, as the manifest describes them.
        """
        small: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, tensor in tensors:
            for target in self._copies.get(name, ()):
                if target.written.nbytes < _SMALL:
                    small.append((target.written, target.taken.of(tensor)))
                else:
                    target.written.copy_(target.taken.of(tensor))
        if small:
            torch._foreach_copy_([written for written, _ in small], [source for _, source in small])

    def take(self, model: nn.Module, tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Copies those of some tensors that are copied, and returns those that are loaded.

        Args:
            model: The engine's model.
            tensors: Names and tensors, as for `copy`.

        Raises:
            RefitError: The copies are compared with what the model's loaders would have written, and they differ: the plan is
                wrong.
        """
        self.copy(tensors)
        others = self.prepared.fill(tensors)
        if self.look is not None and others:  # a cast loses what the engine's dtype cannot hold
            self.look(others, others)
        if self.see is not None:
            prepared = self.prepared.sources
            self.see([*others, *(pair for pair in tensors if pair[0] in self.hidden and pair[0] not in prepared)])
        if self.is_checked and (found := self.differing(model, tensors)):
            raise RefitError(
                f"refit: the recorded copies do not do what the model's loaders do, in {listed(found)}; "
                "the next refit goes through vLLM's reload"
            )
        for full in self.prepared.full():
            if self.see is not None:
                self.see(full.came)
            if self.look is not None:
                self.look(full.held.items(), full.came)
            full.layer.process()
        return ((name, tensor) for name, tensor in tensors if name in self.reloaded)

    def written(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the engine's memory for every copy, each with the name of the trainer's tensor."""
        return ((name, target.written) for name, targets in self._copies.items() for target in targets)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def differing(self, model: nn.Module, tensors: Tensors) -> list[str]:
        """Returns the names of the model's tensors that are not what its own loaders would write; nothing is written.

        Args:
            model: The engine's model.
            tensors: What the trainer sends; what is not copied is left out.
        """
        with _Comparison() as comparison:
            # The class' own: a quirk may have put a method onto the model that opens a reload.
            type(model).load_weights(model, ((name, tensor) for name, tensor in tensors if name in self.copied))
        if not comparison.wrong:
            return []
        names = {tensor.untyped_storage().data_ptr(): name for name, tensor in slots(model) if tensor is not None}
        return sorted({names.get(address, "a tensor that is none of the model's") for address in comparison.wrong})


class _Comparison(TorchDispatchMode):  # type: ignore[misc]
    """Has loaders compare where they would copy; nothing is written."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: set[int] = set()  # addresses of the memory in which a value differs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            written, source = args[:2]
            if not same_bytes(written, source.to(written).expand_as(written)):
                self.wrong.add(written.untyped_storage().data_ptr())
            return written
        return args[0] if func in _FILLS else func(*args, **(kwargs or {}))


def passing(tensors: Tensors, see: See) -> Iterator[tuple[str, torch.Tensor]]:
    """Passes tensors on, and has each seen when its turn comes."""
    for name, tensor in tensors:
        see(name, tensor)
        yield name, tensor


def slots(model: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yields every parameter and buffer that is registered, including those that are None."""
    for path, module in model.named_modules():
        for name, held in (*module._parameters.items(), *module._buffers.items()):
            yield f"{path}.{name}" if path else name, held


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors of one shape and dtype have the same bits; a NaN is equal to itself here."""
    return bool(
        torch.equal(*(tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in (one, other)))
    )
