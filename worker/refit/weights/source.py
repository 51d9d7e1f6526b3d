"""What a refit sends of one model: described once, and again after one of the model's tensors has changed place or kind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import nn

from worker.refit.weights.manifest import Manifest
from worker.refit.weights.packing import Place
from worker.refit.weights.resident import Exported, InPlace, places
from worker.refit.weights.scope import RefitScope, gathered, layout
from worker.refit.weights.snapshot import Snapshot

#: By model, what was found out about it last.
_described: weakref.WeakKeyDictionary[nn.Module, _Description] = weakref.WeakKeyDictionary()


class _Description:
    """What is true of a model while it stays as it was."""

    def __init__(self, model: nn.Module, scope: RefitScope, manifest: Manifest) -> None:
        self.snapshot = Snapshot(model)
        self.scope = scope
        self.manifest = manifest
        self.exported: dict[torch.device, Exported | None] = {}
        self.places: dict[torch.device, Mapping[str, Place]] = {}


class Source:
    """The tensors of one model that one refit sends; call it for each pass over names and tensors.

    An optimizer updates a model in place, so from one refit to the next there is nothing to find out again: neither names nor
    shapes, nor which tensors lie where the engine can read them.

    Attributes:
        model: The trainer's model.
        manifest: Describes what is sent.
    """

    def __init__(self, model: nn.Module, scope: RefitScope | str) -> None:
        """Looks at the model.

        Args:
            model: The trainer's model; it must not change until the refit is over.
            scope: What to send.

        Raises:
            ValueError: The scope is unknown.
        """
        self.model = model
        self._scope = RefitScope(scope)
        known = _described.get(model)
        if known is None or known.scope is not self._scope or not known.snapshot.holds(model):
            known = _described[model] = _Description(model, self._scope, Manifest.of(self._state.items()))
        self._known = known
        self.manifest = known.manifest

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and whole tensors; all ranks of a sharded model have to iterate together."""
        yield from gathered(self._state)

    def exported(self, device: torch.device) -> Exported | None:
        """Returns which of them the engine can read where they are; None if it is none.

        Args:
            device: The device that trainer and engine share.
        """
        if device not in self._known.exported:
            self._known.exported[device] = Exported.of(self.model, self, device)
        return self._known.exported[device]

    def in_place(self, device: torch.device) -> InPlace:
        """Returns which of them lie in the model's own memory on a device."""
        if device not in self._known.places:
            self._known.places[device] = places(self.model, self(), device)
        return InPlace(self.model, self._known.places[device])

    @cached_property
    def _state(self) -> dict[str, torch.Tensor]:
        return layout(self.model, self._scope)
