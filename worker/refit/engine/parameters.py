"""What a model computes with, as its process has it: its parameters, and what kernels make of those that they packed away."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn

from quirks_core.ledger.account import COMPUTES
from worker.refit.engine.verify import packed_answers
from worker.refit.weights.digest import parts


class Parameters:
    """The parameters of a model; an update may replace parameters, and no layers, which take a while to find.

    Attributes:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._layers = [(f"{name}." if name else "", layer._parameters) for name, layer in model.named_modules()]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the parameters that have memory, each once; buffers may change while the engine generates."""
        seen: set[int] = set()
        for layer, parameters in self._layers:
            for name, parameter in parameters.items():
                if parameter is not None and parameter.numel() and not parameter.is_meta and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield from parts(layer + name, parameter)

    def answers(self, scale: float = 1.0) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields what each layer with a packed weight makes of one input (`packed_answers`), as ``NAME (as it computes)``."""
        held = chain.from_iterable(parameters.values() for _, parameters in self._layers)
        if any(parameter is not None and not parameter.numel() for parameter in held):
            yield from ((name + COMPUTES, answer) for name, answer in packed_answers(self.model, scale=scale))
