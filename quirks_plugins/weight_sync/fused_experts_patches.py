"""The function that ``fused-experts-refit`` puts into vLLM.

Only engine processes import this module; vLLM, torch and transformers are imported when a function runs, because a patch may
come into force while vLLM is being imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_load_model"]


def wrap_load_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a model's ``load_weights`` take tensors as transformers holds them, too."""

    @wraps(original)
    def load_model(*args: Any, **kwargs: Any) -> torch.nn.Module:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        model: Any = original(*args, **kwargs)
        conversions = get_checkpoint_conversion_mapping(getattr(getattr(model, "config", None), "model_type", None))
        if conversions is not None:  # a draft may have none
            load = model.load_weights
            # All that transformers asks of a model here.
            held = SimpleNamespace(config=model.config, _weight_conversions=conversions)
            patterns = [conversion.reverse_transform().compiled_sources.pattern for conversion in conversions]
            of_transformers = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join(patterns)))  # all have a group of the same name

            @wraps(load)
            def load_weights(weights: Iterable[tuple[str, torch.Tensor]], *given: Any, **named: Any) -> Any:
                return load(_as_in_checkpoint(weights, held, of_transformers), *given, **named)

            model.load_weights = load_weights
        return model

    return load_model


def _as_in_checkpoint(
    weights: Iterable[tuple[str, torch.Tensor]], held: Any, of_transformers: re.Pattern[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields tensors as a checkpoint holds them, one by one; transformers compiles its table anew for each that it converts."""
    from transformers.core_model_loading import revert_weight_conversion

    for name, tensor in weights:
        if of_transformers.search(name):
            yield from revert_weight_conversion(held, {name: tensor}).items()
        else:
            yield name, tensor
