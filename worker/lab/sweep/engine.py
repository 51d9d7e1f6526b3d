"""Tiny checkpoints of the architectures that the kit does not have: for scenarios, and for ``scripts/sweep.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from worker.lab.kit import checkpoints

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

#: Configurations that the kit does not have, by kind.
FURTHER: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("kinds.yaml").read_text(encoding="utf-8"))["kinds"]
KINDS: tuple[str, ...] = (*checkpoints.KINDS, *FURTHER)


def build(kind: str, folder: Path) -> Path:
    """Writes a tiny random checkpoint (seed 0) with its tokenizer, as `worker.lab.kit.checkpoints.build` does.

    Raises:
        Exception: Whatever transformers raises if it cannot make such a model.
    """
    if kind in checkpoints.KINDS:
        return checkpoints.build(kind, folder)
    import torch
    import transformers

    # The kit's own parts, although they are private: a change of that module would make recorded evidence outdated.
    values = {**checkpoints._SHARED, **FURTHER[kind]}
    written = values.pop("config.json", {})
    config = config_class(kind)(**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model.eval(), 0)
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **written}, indent=2), encoding="utf-8")
    checkpoints._write_tokenizer(folder)
    return folder


def config_class(kind: str) -> type[PreTrainedConfig]:
    """Returns transformers' own class; vLLM registers others under some of these names in a process that has imported it."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return getattr(transformers, CONFIG_MAPPING_NAMES[kind.partition(":")[0]])  # type: ignore[no-any-return]


def randomise(model: PreTrainedModel, seed: int) -> None:
    """Draws every floating tensor of a model's state dict, in place and in order of name."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(checkpoints._draw(name, tensor, generator))
