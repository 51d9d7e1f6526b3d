"""The trainer's side of a refit: which tensors of the model are sent, and the file that carries them.

A trainer that iterates over ``named_parameters()`` leaves out the persistent buffers, although a checkpoint of the
same model holds them. An engine that took its buffers from the checkpoint mostly survives that; one that started
from dummy weights does not, and neither does a buffer that shares a layer with parameters that are sent, because the
engine rebuilds such a layer as a whole. `RefitScope` makes the choice explicit.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class RefitScope(StrEnum):
    """What a refit sends."""

    #: The parameters, as most trainers do.
    PARAMETERS = "parameters"
    #: Parameters and persistent buffers: what a checkpoint holds.
    STATE_DICT = "state_dict"


def tensors(model: torch.nn.Module, scope: RefitScope) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields what a refit sends, under the names of a Hugging Face checkpoint.

    The two scopes differ in the buffers alone. Both yield a tied parameter under each of its names: an engine may
    keep a processed copy per name (vLLM's CPU build packs a tied ``lm_head`` anew only if it is sent), and one that
    does not ignores the second.

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
    import torch

    # By value, so that a plan's plain string cannot select the other scope by accident.
    wanted = torch.nn.Parameter if RefitScope(scope) is RefitScope.PARAMETERS else torch.Tensor
    # `keep_vars` keeps parameters distinguishable from buffers; modules may also put other objects into a state dict.
    state = {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, wanted)}
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    for name, tensor in _checkpoint_layout(model, state).items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        yield name, whole.contiguous()


def write(tensors: Iterable[tuple[str, torch.Tensor]], path: Path) -> None:
    """Writes tensors to a safetensors file, which appears complete or not at all.

    The file is readable by its owner only. A file of the same name is replaced, not overwritten: a worker that still
    has the old one mapped keeps its content.

    Args:
        tensors: Names and tensors of any shape, dtype and device. Tensors that share memory are written separately.
        path: The file; its folder must exist. Make it a private one (``0700``, as from ``tempfile.mkdtemp``).

    Raises:
        ValueError: Two tensors have the same name.
        OSError: The file cannot be written.
    """
    from safetensors.torch import save_file

    payload: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors:
        if name in payload:
            raise ValueError(f"two tensors are called {name!r}")
        host = tensor.cpu()
        storage = host.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, as tied parameters and the views of a fused one do.
        payload[name] = host.clone() if storage in storages else host
        storages.add(storage)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
    os.close(handle)
    try:
        save_file(payload, temporary)
        Path(temporary).chmod(0o600)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _checkpoint_layout(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Undoes the renaming and fusing that transformers does when it loads a checkpoint.

    Args:
        model: The model that the tensors belong to; anything but a transformers model is left as it is.
        state: Its tensors by name.

    Returns:
        The same values by their names in a checkpoint.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return state
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, state))
