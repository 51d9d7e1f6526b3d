"""The engine's side of a refit audit: the running model against one that vLLM loads from the checkpoint beside it.

Imports vLLM for its loader, with which an engine loads a checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from worker.errors import RefitError
from worker.lab.audit.records import AuditError
from worker.refit.engine import verify

#: Most names of checkpoint tensors listed as the source of one tensor of the engine; experts have hundreds.
_NAMES = 8
#: Where a worker keeps its part of the audit between two steps.
_AUDIT = "_model_quirks_audit"
_UNWRITTEN = "uninitialised memory: the refit allocated it, and nothing wrote to it"


def step(worker: Any, name: str) -> list[dict[str, Any]]:
    """Does one step of an audit in a worker of the engine (`Engine.call`), as `TensorAudit.step` has it."""
    if not hasattr(worker, _AUDIT):
        setattr(worker, _AUDIT, TensorAudit(worker.vllm_config, worker.device))
    audit: TensorAudit = getattr(worker, _AUDIT)
    return audit.step(name, worker.weight_transfer_engine.model)


class TensorAudit:
    """One process' part of an audit; it keeps the second model between comparisons, because loading it is slow."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        """Keeps what loading the second model needs: the engine's configuration and device."""
        self._config = vllm_config
        self._device = device
        self._fresh: nn.Module | None = None
        self._written: dict[str, tuple[str, ...]] = {}
        self._poison = ExitStack()

    def step(self, name: str, model: nn.Module) -> list[dict[str, Any]]:
        """Does one step of an audit.

        ``poison`` fills newly allocated memory with NaN from now on, so that uninitialised values cannot match by accident;
        ``compare`` ends that and returns what `differing` finds; ``release`` drops the second model.

        Raises:
            AuditError: There is not enough memory for the second model.
        """
        self._poison.close()
        match name:
            case "poison":
                self._poison.enter_context(unwritten_is_nan())
            case "compare":
                if self._fresh is None:
                    self._fresh = self._load()
                return list(differing(model, self._fresh, self._written, self._config.model_config.dtype))
            case "release":
                self._fresh = None
        return []

    def _load(self) -> nn.Module:
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        try:  # values that a load does not write are undefined in both models
            with unwritten_is_nan():
                fresh = verify.fresh_model(self._config, self._device)
                self._written = load_checkpoint(fresh, self._config, self._device)
                process_weights_after_loading(fresh, self._config.model_config, self._device)
        except (RefitError, torch.OutOfMemoryError) as error:
            raise AuditError(
                f"an audit loads the checkpoint beside the engine's model, and there is no memory for it on {self._device}; "
                "lower engine.gpu_memory_utilization, or shard the model (engine.tensor_parallel_size)"
            ) from error
        return fresh


@contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Makes torch fill the memory that it allocates with NaN (integers with the largest value)."""
    deterministic = torch.utils.deterministic
    filled = deterministic.fill_uninitialized_memory
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warns)
        deterministic.fill_uninitialized_memory = filled


def load_checkpoint(model: nn.Module, vllm_config: Any, device: torch.device) -> dict[str, tuple[str, ...]]:
    """Loads the checkpoint with vLLM's default loader, whatever the engine's, into a model that has no weights yet.

    Returns:
        For every tensor of the model that was written, the checkpoint's names that it was written from, the first few; none for
        values that were computed during the load.
    """
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.utils.torch_utils import set_default_torch_dtype

    how = copy.copy(vllm_config.load_config)
    how.load_format = "auto"
    how.use_tqdm_on_load = False
    writes = _Writes()
    original = model.load_weights

    def recorded(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        return original(writes.named(weights))

    model.load_weights = recorded
    try:
        with set_default_torch_dtype(vllm_config.model_config.dtype), device, writes:
            get_model_loader(how).load_weights(model, vllm_config.model_config)
    finally:
        del model.load_weights
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    places = ((name, _place(tensor)) for name, tensor in tensors)
    return {name: tuple(writes.into[place])[:_NAMES] for name, place in places if place in writes.into}


class _Writes(TorchDispatchMode):  # type: ignore[misc]
    """Records which memory is written while weights are loaded, and from which of the checkpoint's tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.into: dict[int, dict[str, None]] = {}  #: names of the checkpoint's tensors by the memory that was written
        self._names: dict[int, str] = {}

    def named(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields weights and records the address of each; a later one can have the address of one that was freed."""
        for name, tensor in weights:
            self._names[_place(tensor)] = name
            yield name, tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if args and func._schema.arguments[0].is_write and (target := _place(args[0])):
            names = self.into.setdefault(target, {})
            names.update({self._names[place]: None for place in map(_place, args[1:]) if place in self._names})
        return found


def _place(value: Any) -> int:
    """Returns the address of a tensor's memory; 0 for anything else, and for a tensor without memory."""
    if not isinstance(value, torch.Tensor):
        return 0
    try:
        return int(value.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0


def differing(
    model: nn.Module, fresh: nn.Module, written: Mapping[str, tuple[str, ...]], dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    """Compares the running model, which computes in `dtype`, with one from the checkpoint.

    `load_checkpoint` returned `written` for that one.

    Yields:
        For every tensor that differs, and every layer whose output differs although its tensors are equal, the fields of
        `worker.lab.audit.records.Hazard` that a process knows.
    """
    held, expected, modules = dict(_tensors(model)), dict(_tensors(fresh)), dict(fresh.named_modules())
    tensors = held | expected
    found = verify.differences(model, fresh, dtype)
    owners = {name.rpartition(".")[0] for name in found if name in tensors}
    for key, problem in found.items():
        tensor = tensors.get(key)
        name = key if tensor is not None else key.partition(" ")[0]
        owner, _, leaf = name.rpartition(".") if tensor is not None else (name, "", "")
        if _is_unwritten(expected.get(key)) or (tensor is None and name in owners):
            continue
        module = modules.get(owner, nn.Module())
        # A layer computes with values of its own tensors, which packing may have removed.
        sources = [written[key] for key in written if key == name or (tensor is None and key.startswith(f"{name}."))]
        yield {
            "name": name,
            "kind": "computation" if tensor is None else "buffer" if leaf in module._buffers else "parameter",
            "module": owner,
            "module_class": f"{type(module).__module__}.{type(module).__qualname__}" if owner in modules else "",
            "persistent": leaf not in module._non_persistent_buffers_set,
            "shape": list(tensor.shape) if tensor is not None else [],
            "problem": _UNWRITTEN if _is_unwritten(held.get(key)) else problem,
            "in_checkpoint": bool(sources),
            "checkpoint": list(dict.fromkeys(chain.from_iterable(sources))),
        }


def _is_unwritten(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor of a model that was filled with NaN has never been written: a work buffer."""
    return tensor is not None and tensor.is_floating_point() and tensor.numel() > 0 and bool(tensor.isnan().all())


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((name, tensor.detach()) for name, tensor in model.named_parameters())
    yield from model.named_buffers()
