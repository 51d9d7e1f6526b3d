"""Which of the trainer's tensors a refit sends, and under which names.

A trainer that iterates over ``named_parameters()`` leaves out the persistent buffers, although a checkpoint of the
same model holds them. An engine that took its buffers from the checkpoint mostly survives that; one that started
from dummy weights does not, and neither does a buffer that shares a layer with parameters that are sent, because the
engine rebuilds such a layer as a whole. `RefitScope` makes the choice explicit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class RefitScope(StrEnum):
    """What a refit sends."""

    #: The parameters, as most trainers do.
    PARAMETERS = "parameters"
    #: Parameters and persistent buffers: what a checkpoint holds.
    STATE_DICT = "state_dict"


def tensors(model: torch.nn.Module, scope: RefitScope | str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields what a refit sends, under the names of a Hugging Face checkpoint.

    The two scopes differ in the buffers alone. A tied parameter is sent once, under its first name, as checkpoints hold it.

    Names and layouts that differ between the module and its checkpoints (transformers fuses the experts of a MoE
    layer) are turned back into the checkpoint's. A sharded tensor (``DTensor``) is gathered when its turn comes, so
    all ranks have to iterate together.

    Args:
        model: The trainer's model.
        scope: What to send.

    Yields:
        Name and tensor; the tensor is detached and contiguous, has the model's shape, dtype and device, and shares
        the model's memory where it can: use it before the next optimizer step.

    Raises:
        ValueError: The scope is unknown.
    """
    yield from gathered(layout(model, scope))


def layout(model: torch.nn.Module, scope: RefitScope | str) -> dict[str, torch.Tensor]:
    """Returns what `tensors` yields, sharded tensors (``DTensor``) as they are."""
    return checkpoint_layout(model, {name: tensor.detach() for name, tensor in own_tensors(model, scope).items()})


def own_tensors(model: torch.nn.Module, scope: RefitScope | str) -> dict[str, torch.Tensor]:
    """Returns the model's own parameters and buffers, as the model itself names and lays them out."""
    import torch

    # By value, so that a plan's plain string cannot select the other scope by accident.
    wanted = torch.nn.Parameter if RefitScope(scope) is RefitScope.PARAMETERS else torch.Tensor
    # `keep_vars` keeps parameters distinguishable from buffers; modules may also put other objects into a state dict.
    state = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, wanted)}
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: tensor for name, tensor in state.items() if first[id(tensor)] == name}


def is_sharded(tensor: Any) -> bool:
    """Returns whether a tensor is a ``DTensor``."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Any) -> torch.Tensor:
    """Returns what this rank has of a tensor: its part of a ``DTensor``, or all of it."""
    own: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return own


def gathered(state: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields tensors whole and contiguous; all ranks have to iterate together."""
    for name, tensor in state.items():
        whole = tensor.full_tensor() if is_sharded(tensor) else tensor
        yield name, whole.contiguous()


def checkpoint_layout(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Undoes the renaming and fusing that transformers does when it loads a checkpoint; parts of a fused tensor are views.

    Args:
        model: The trainer's model.
        state: Its tensors, or others of their shapes in their place.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return state
    from transformers.core_model_loading import revert_weight_conversion

    from worker.refit.weights.views import without_copies

    return without_copies(lambda: dict(revert_weight_conversion(model, state)))
