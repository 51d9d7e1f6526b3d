"""What the loaders of an engine take of an update, and what of that is still known to be in force."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from quirks_core.ledger.account import COMPUTES, Way
from worker.refit.weights.copy_plan import CopyPlan, Tensors, passing
from worker.refit.weights.digest import Digester
from worker.refit.weights.expected import common, engine_name


class Coming:
    """An update that has begun."""

    def __init__(self, way: Way, whole: bool, unannounced: tuple[str, ...] = (), seconds: float = 0.0) -> None:
        self.way = way
        self.digester = Digester(whole=whole)
        self.unannounced = unannounced
        self.seconds = seconds
        self.tensors = self.bytes = 0
        self.dtypes: set[torch.dtype] = set()

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Takes note of a tensor that came."""
        self.tensors += 1
        if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
            self.bytes += tensor.nbytes
            self.dtypes.add(tensor.dtype)
            with _disable_current_modes():
                self.digester.add(name, tensor)

    def see_all(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Takes note of tensors that came together, and that are in memory as long as this takes."""
        self.tensors += len(tensors)
        self.bytes += sum(tensor.nbytes for _, tensor in tensors)
        self.dtypes |= {tensor.dtype for _, tensor in tensors}
        with _disable_current_modes():
            self.digester.add_all(tensors)

    def passing(self, weights: Tensors) -> Tensors:
        """Passes tensors on as they are, a collection or a stream, and takes note of each."""
        if not isinstance(weights, Collection):
            return passing(weights, self.see)
        for name, tensor in weights:
            self.see(name, tensor)
        return weights


class Taken:
    """The digests of what the loaders took last, by name in a checkpoint."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    def add(self, came: Mapping[str, str], changed: Iterable[str], held: Mapping[str, str], plan: CopyPlan | None) -> None:
        """Notes an update; of layers that it changed past their loaders nothing is known any more.

        Args:
            came: The digests of what the loaders took.
            changed: The names of the engine's tensors that are not as before.
            held: The digests of all of them.
            plan: What was copied, if something was: `held` has its bytes, or `came` what it was copied from, or nobody saw it.
        """
        past = _layers(changed) - {_layer(name) for name in came}
        sent = plan.manifest.index if plan is not None else ()  # some, perhaps, for other ranks
        kept = {name: one for name, one in self.digests.items() if name not in sent and _layer(name) not in past}
        alone = plan.alone.items() if plan is not None else ()
        self.digests = {**kept, **came, **{name: held[place] for name, place in alone if place in held}}

    def beside(self, past: Iterable[str]) -> dict[str, str]:
        """Returns the digests, empty for layers of which some tensors have changed past their loaders since."""
        layers = _layers(past)
        return {name: "" if _layer(name) in layers else digest for name, digest in self.digests.items()}


@cache
def _layer(name: str) -> str:
    """Returns the common name of the engine's layer that a tensor belongs to, given its name there or in a checkpoint."""
    return engine_name(common(name)).rpartition(".")[0]


def _layers(held: Iterable[str]) -> set[str]:
    return {_layer(name.replace(COMPUTES, ".weight")) for name in held}
