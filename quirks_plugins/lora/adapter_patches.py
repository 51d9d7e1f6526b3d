"""The wrappers of the quirks on LoRA adapters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

_log = logging.getLogger("model_quirks")
_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


def wrap_activate_adapter(activate: Callable[[Any, int], bool]) -> Callable[[Any, int], bool]:
    """Returns an `activate_adapter` that refuses an adapter without a tensor of the model, and names those without effect."""

    def activate_matching(self: Any, lora_id: int) -> bool:
        adapter = self._registered_adapters[lora_id]
        ours = set(self.modules) | {name.removeprefix("model.") for name in self.modules}
        unmatched = sorted(set(adapter.loras) - ours)
        theirs = f"its {len(adapter.loras)} modules ({', '.join(unmatched[:2])}, ...)"
        if adapter.loras and not any(self._get_lora_layer_weights(adapter, name) for name in self.modules):
            self.remove_adapter(lora_id)
            raise ValueError(
                f"LoRA adapter {lora_id}: none of {theirs} is a module of this model that takes LoRA "
                f"({', '.join(sorted(self.modules)[:2])}, ...): requests would get the base model. Rename the adapter's "
                "tensors, or check lora_target_modules"
            )
        if unmatched and lora_id not in self._active_adapters:
            _log.warning(
                "LoRA adapter %d: %d of %s have no effect: this model has no such modules that take LoRA",
                *(lora_id, len(unmatched), theirs),
            )
        return activate(self, lora_id)

    return activate_matching


@dataclass(frozen=True)
class _Source:
    """The files that an adapter was read from."""

    path: str
    files: tuple[tuple[str, int, int, int], ...]

    @classmethod
    def at(cls, path: str) -> _Source:
        found = []
        for name in _FILES:
            try:
                state = (Path(path) / name).stat()
            except OSError:  # another format, or a name on the hub
                continue
            found.append((name, state.st_ino, state.st_size, state.st_mtime_ns))
        return cls(path, tuple(found))


def wrap_add_lora(add_lora: Callable[[Any, LoRARequest], bool]) -> Callable[[Any, LoRARequest], bool]:
    """Returns an `add_lora` that loads an adapter again whose path or files are not those that were read."""

    def add_changed_lora(self: Any, lora_request: LoRARequest) -> bool:
        import msgspec

        known: dict[int, _Source] = self.__dict__.setdefault("_model_quirks_adapters", {})
        source = _Source.at(lora_request.lora_path)
        if known.get(lora_request.lora_int_id) != source:
            lora_request = msgspec.structs.replace(lora_request, load_inplace=True)
        done = add_lora(self, lora_request)
        known[lora_request.lora_int_id] = source
        return done

    return add_changed_lora


def wrap_load_lora_adapter(load: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `load_lora_adapter` whose requests do not load the adapter again."""

    async def load_once(self: Any, request: Any, base_model_name: str | None = None) -> Any:
        answer = await load(self, request, base_model_name)
        stored = self.lora_requests.get(request.lora_name)
        if stored is not None:
            stored.load_inplace = False
        return answer

    return load_once
