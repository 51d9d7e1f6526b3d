"""One layerwise reload of a running model: opens it, closes it, and checks the model afterwards.

Imports vLLM for that reload.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from quirks_core.errors import words
from worker.errors import RefitUnsupportedError

#: How many names a message shows.
_SHOWN = 8


class Reload:
    """One layerwise reload: vLLM resets the layers to their state before loading, and processes each with its new weights.

    Attributes:
        slots: Names of all parameters and buffers that the model had before, including those that are None.
        wanted: Names of the parameters that a checkpoint fills; empty before `open`. What the engine computes from loaded
            weights (MLA's ``W_UK_T`` and ``W_UV``) is not among them: no trainer has it, and the reload computes it again.
        touched: Whether the model may hold other tensors or values than before.
    """

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        """Records what the model holds; takes vLLM's configuration of it."""
        self._model = model
        self._config = model_config
        self._before = _identities(model)
        self.slots = self._before.keys()
        self.wanted: frozenset[str] = frozenset()
        self.touched = False

    def open(self) -> None:
        """Makes the layers ready to be loaded.

        Raises:
            RefitUnsupportedError: vLLM cannot reload this model; what it had changed was undone.
        """
        parameters = {name for name, _ in self._model.named_parameters()}
        self.touched = True
        try:
            initialize_layerwise_reload(self._model)
        except Exception as error:
            self.close()
            self.touched = self._before != _identities(self._model)
            raise RefitUnsupportedError(f"refit: vLLM cannot reload this model: {words(error)}") from error
        # Parameters that processing added are gone until the reload is closed.
        self.wanted = frozenset(parameters & {name for name, _ in self._model.named_parameters()})

    def close(self) -> None:
        """Processes the remaining layers and puts the weights in force."""
        finalize_layerwise_reload(self._model, self._config)

    def check(self, slots: Collection[str]) -> None:
        """Checks, after `close`, that the model still has every tensor that it computes with.

        Args:
            slots: Names of the parameters and buffers that it must have.

        Raises:
            RefitUnsupportedError: It does not, so the next forward pass would fail.
        """
        after = dict(_slots(self._model))
        problems = [
            _listing("removes", sorted(name for name in slots if name not in after)),
            _listing("leaves without memory", [name for name, held in after.items() if held is not None and held.is_meta]),
        ]
        if found := [problem for problem in problems if problem]:
            raise RefitUnsupportedError(f"refit: vLLM's reload of this model {' and '.join(found)}")


def _slots(model: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yields every parameter and buffer that is registered, including those that are None."""
    for path, module in model.named_modules():
        for name, held in (*module._parameters.items(), *module._buffers.items()):
            yield f"{path}.{name}" if path else name, held


def _identities(model: nn.Module) -> dict[str, int]:
    return {name: id(held) for name, held in _slots(model)}


def _listing(verb: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{verb} {', '.join(names[:_SHOWN])}{more}" if names else ""
