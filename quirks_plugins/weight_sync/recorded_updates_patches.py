"""The functions that ``recorded-updates`` puts into vLLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def wrap_initialize_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a new model record and copy its updates, if its layers stay what they are between updates.

    What other quirks and the ledger put around its ``load_weights`` comes later, so that it sees all tensors, copied or not.
    """

    @wraps(original)
    def initialize_model(vllm_config: Any, *, model_config: Any = None, **kwargs: Any) -> torch.nn.Module:
        model = original(vllm_config, model_config=model_config, **kwargs)
        config = model_config or vllm_config.model_config
        moves = vllm_config.parallel_config.enable_eplb or vllm_config.lora_config is not None
        if hasattr(model, "load_weights") and config.quantization is None and not moves:
            from worker.refit.engine import updates

            updates.Updates(model, config)
        return model

    return initialize_model


def wrap_initialize(original: Callable[..., None]) -> Callable[..., None]:
    """Make the start of a layerwise reload the start of an update that is recorded or copied."""

    @wraps(original)
    def initialize_layerwise_reload(model: torch.nn.Module) -> None:
        from worker.refit.engine import updates

        if (found := updates.of(model)) is None:
            original(model)
        else:
            found.open(original)

    return initialize_layerwise_reload


def wrap_finalize(original: Callable[..., None]) -> Callable[..., None]:
    """Make the end of a layerwise reload the end of the update."""

    @wraps(original)
    def finalize_layerwise_processing(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        from worker.refit.engine import updates

        if (found := updates.of(model)) is None:
            original(model, *args, **kwargs)
        else:
            found.close(original, *args, **kwargs)

    return finalize_layerwise_processing


def wrap_packed_consumer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make tensors that are copied at once come out of a trainer's buffer without a clone."""

    @wraps(original)
    def packed_ipc_consumer(*args: Any, **kwargs: Any) -> Any:
        from worker.refit.engine import updates

        return updates.unpacked(original, *args, **kwargs)

    return packed_ipc_consumer


def copied(worker: Any) -> int:
    """Runs in a worker: returns how many tensors of the last update were copied."""
    from worker.refit.engine import updates

    found = updates.of(worker.model_runner.get_model())
    return 0 if found is None else found.copied
