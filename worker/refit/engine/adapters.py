"""LoRA adapters that a process loads: what each brings, and whether it is one that the process knows."""

from __future__ import annotations

from typing import Any

import torch

from worker.refit.engine.finite import NotFinite
from worker.refit.weights.digest import digests

#: Adapters that are known.
_KEPT = 16


class Adapters:
    """The adapters that one process has loaded, the newest first.

    Args:
        whole: Read every byte for the digests, not a sample of large tensors.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._known: dict[tuple[str, int, str], dict[str, str]] = {}

    def add(self, manager: Any, request: Any, adapter: Any) -> dict[str, Any] | None:
        """Takes one that was loaded.

        Args:
            manager: vLLM's ``LoRAModelManager``.
            request: Its ``LoRARequest``.
            adapter: The ``LoRAModel``.

        Returns:
            What a `quirks_core.ledger.account.Entry` has of it; None if it was dropped and read again, which is no update.
        """
        tensors = {
            f"{module}.{side}": tensor
            for module, weights in adapter.loras.items()
            for side in ("lora_a", "lora_b")
            if isinstance(tensor := getattr(weights, side), torch.Tensor)
        }
        held = digests(tensors.items(), whole=self._whole)
        key = (request.lora_name, request.lora_int_id, request.lora_path)
        if self._known.get(key) == held and not request.load_inplace:
            return None
        last = next(iter(self._known.values()), {})
        self._known.pop(key, None)
        self._known = {key: held, **dict(list(self._known.items())[: _KEPT - 1])}
        takes = {*manager.modules, *(name for names in manager.packed_modules.values() for name in names)}
        experts = tuple(f"{name}." for name in manager.modules if name.endswith("experts"))
        not_finite = NotFinite()
        not_finite.look(tensors.items())
        return {
            "way": "lora",
            "tensors": len(tensors),
            "bytes": sum(tensor.nbytes for tensor in tensors.values()),
            "digests": held,
            "changed": tuple(name for name in held if held[name] != last.get(name)),
            "not_finite": tuple(sorted(not_finite)),
            "adapter": request.lora_name,
            "unmatched": tuple(name for name in adapter.loras if name not in takes and not name.startswith(experts)),
            "is_zero": not any(_adds(weights) for weights in adapter.loras.values()),
        }


def _adds(weights: Any) -> bool:
    """Returns whether a module of an adapter adds something that a float32 resolves."""
    sides = [side for side in (weights.lora_a, weights.lora_b) if isinstance(side, torch.Tensor)]
    return abs(weights.scaling) > torch.finfo(torch.float32).eps and all(bool(side.any()) for side in sides)
