"""The wrapper that ``laguna-router-bias`` puts around the loader of vLLM's experts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Weights = Iterable[tuple[str, torch.Tensor]]

_NAME = "e_score_correction_bias"


def wrap_load_weights(load: Callable[[Any, Weights], Iterable[str]]) -> Callable[[Any, Weights], Iterable[str]]:
    """Returns a `RoutedExperts.load_weights` that loads the correction bias as well."""

    def load_with_bias(self: Any, weights: Weights) -> Iterator[str]:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        loaded = []

        def without_bias() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                if name == _NAME and getattr(self, _NAME, None) is not None:
                    parameter = getattr(self, _NAME)
                    getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
                    loaded.append(name)
                else:
                    yield name, tensor

        yield from load(self, without_bias())
        yield from loaded

    return load_with_bias
