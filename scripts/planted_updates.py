"""What a trainer sends in ``scripts/planted_faults.py``: updates with a fault, adapters with a fault, and healthy runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

UPPER, LOWER = "model.layers.1.", "model.layers.0."

#: Tensors by their names in a checkpoint.
Items = dict[str, Any]
#: Makes what is sent of the states that the trainer had, the newest last.
Sending = Callable[[list[Items]], Items]


def _renamed(old: str, new: str) -> Sending:
    """Sends each of two kinds of tensors under the name of the other."""

    def fault(states: list[Items]) -> Items:
        swapped = {name: name.replace(old, "\0").replace(new, old).replace("\0", new) for name in states[-1]}
        return {swapped[name]: tensor for name, tensor in states[-1].items()}

    return fault


def _changed(word: str, change: Callable[[Any], Any]) -> Sending:
    return lambda states: {name: change(one).contiguous() if word in name else one for name, one in states[-1].items()}


def _without(word: str) -> Sending:
    return lambda states: {name: tensor for name, tensor in states[-1].items() if word not in name}


def _twice(states: list[Items]) -> Items:
    return {name: tensor + (tensor - states[-2][name]) for name, tensor in states[-1].items()}


def _half(states: list[Items]) -> Items:
    found = {name: tensor.clone() for name, tensor in states[-2].items()}
    for name, tensor in states[-1].items():
        found[name][: len(tensor) // 2] = tensor[: len(tensor) // 2]
    return found


_swapped = _renamed(UPPER, LOWER)

#: What every rank of an engine gets.
FAULTS: dict[str, Sending] = {
    "layers swapped": _swapped,
    "a tensor of another layer": _renamed("0.self_attn.o_proj", "1.self_attn.o_proj"),
    "gate and up swapped": _renamed("gate_proj", "up_proj"),
    "k and v swapped": _renamed("k_proj", "v_proj"),
    "norms swapped": _renamed("input_layernorm", "post_attention_layernorm"),
    "transposed": _changed("q_proj", lambda tensor: tensor.T),
    "sign flipped": _changed("down_proj", lambda tensor: -tensor),
    "rounded": _changed("self_attn", lambda tensor: (tensor * 64).round() / 64),
    "half of the rows stale": _half,
    "applied twice": _twice,
    "stale by one": lambda states: states[-2],
    "stale by three": lambda states: states[-4],
    "one layer left out": _without(UPPER),
    "the embedding left out": _without("embed_tokens"),
    "nothing sent": lambda _: {},
}
#: What the last rank gets, where the others get the right update.
OF_ONE_RANK: dict[str, Sending] = {
    "one rank: nothing sent": lambda _: {},
    "one rank: stale by one": lambda states: states[-2],
    "one rank: layers swapped": _swapped,
}
#: Adapters that change nothing for a request, and after how many of a kind in a row the ledger has to name them.
ADAPTERS = {
    "alpha 0": 3,
    "alpha 1e-9": 3,
    "A zero": 3,
    "B zero": 3,
    "the names of another model": 1,
    "loaded, and no request names it": 4,
}


def step(policy: Any, size: float = 1e-2, *, frozen: str = "\0") -> None:
    """Makes a step of training."""
    import torch

    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if frozen not in name:
                parameter.add_(torch.randn_like(parameter) * size)


def write_adapter(folder: Path, number: int, fault: str = "") -> Path:
    """Writes an adapter of the kind qwen3 as PEFT does, right or with one of the faults in `ADAPTERS`."""
    from safetensors.torch import load_file, save_file

    from quirks_plugins.lora import evidence

    prefix = "language_model.model" if fault == "the names of another model" else "model"
    evidence.write_adapter(folder, number, prefix=prefix)
    if fault.startswith("alpha"):
        config = folder / "adapter_config.json"
        values = {**json.loads(config.read_text(encoding="utf-8")), "lora_alpha": float(fault.split()[1])}
        config.write_text(json.dumps(values), encoding="utf-8")
    if fault in ("A zero", "B zero"):
        file, side = folder / "adapter_model.safetensors", f"lora_{fault[0]}"
        save_file({name: tensor * (side not in name) for name, tensor in load_file(file).items()}, file)
    return folder


class Healthy:
    """What a healthy trainer does between two updates; returns what it sends, and what the engine should have."""

    def __init__(self, policy: Any, items: Callable[[Any], Items], updates: int) -> None:
        self._policy, self._items, self._updates = policy, items, updates
        self._other, self._average = copy.deepcopy(policy), copy.deepcopy(policy)
        step(self._other)

    def runs(self) -> dict[str, Callable[[int], tuple[Items, Any]]]:
        """Returns each kind of run by name; its function gets the number of the update."""
        return {
            "learning rate 0 in warm-up and at the end": self._warmed_up,  # first: nothing has moved the engine yet
            "trained": lambda _: self._trained(),
            "steps below one unit in the last place": lambda _: self._trained(1e-7),
            "learning rate 0 at every second step": lambda number: self._trained(number % 2 * 1e-2),
            "sent again: an evaluation, a skipped step": lambda number: (
                self._trained() if number % 3 else self._sent(self._policy)
            ),
            "two policies by turns": lambda number: self._sent((self._policy, self._other)[number % 2]),
            "moving average": lambda _: self._averaged(),
            "a frozen layer, sent": lambda _: self._trained(frozen=LOWER),
            "a frozen embedding, not sent": lambda number: self._unsent("embed_tokens", number),
            "experts without gradient": lambda _: self._trained(frozen=".experts.0."),
        }

    def _sent(self, model: Any) -> tuple[Items, Any]:
        return self._items(model), model

    def _trained(self, size: float = 1e-2, *, frozen: str = "\0") -> tuple[Items, Any]:
        step(self._policy, size, frozen=frozen)
        return self._sent(self._policy)

    def _warmed_up(self, number: int) -> tuple[Items, Any]:
        return self._trained(1e-2 * (2 <= number < self._updates - 2))

    def _averaged(self) -> tuple[Items, Any]:
        step(self._policy)
        for mean, new in zip(self._average.parameters(), self._policy.parameters(), strict=True):
            mean.data.lerp_(new.data, 0.1)
        return self._sent(self._average)

    def _unsent(self, word: str, number: int) -> tuple[Items, Any]:
        sent, model = self._trained(frozen=word)
        return {name: tensor for name, tensor in sent.items() if word not in name or not number}, model
